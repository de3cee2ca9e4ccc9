// What test_page_access.py looks at in the page. These functions are put into one that Playwright calls.

function channel(value) {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
}

function luminance(rgb) {
    return 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
}

function parse(text) {
    const parts = text.match(/[\d.]+/g).map(Number);
    if (text.startsWith("color(srgb")) parts.splice(0, 3, ...parts.slice(0, 3).map((part) => part * 255));
    return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
}

function over(front, back) {
    return front.rgb.map((part, index) => part * front.alpha + back[index] * (1 - front.alpha));
}

/** The colour that an element's text stands on. */
function ground(element) {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
}

/** [contrast, text, colour, whether it is a chart's] of all texts in sight; those in coloured cells are left out. */
function contrasts() {
    const found = [];
    const without =
        "script, style, noscript, option, .unseen, .skip, [hidden], .slice, .textpoint, .hm, #js-plotly-tester";
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || element.closest(without) || element.getClientRects().length === 0) continue;
        const style = getComputedStyle(element);
        const drawn = element instanceof SVGElement;
        const back = ground(drawn ? element.closest(".chart") : element);
        const front = over(parse(drawn ? style.fill : style.color), back);
        const [more, less] = [luminance(front), luminance(back)].sort((a, b) => b - a);
        found.push([(more + 0.05) / (less + 0.05), node.data.trim().slice(0, 40), style.color, drawn]);
    }
    return found;
}

function nameOf(one) {
    const referred = (one.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id));
    return (
        one.getAttribute("aria-label") ||
        referred.map((label) => label?.textContent ?? "").join("") ||
        [...(one.labels ?? [])].map((label) => label.textContent).join("") ||
        one.textContent
    ).trim();
}

function hasHeads(table) {
    const heads = [...table.tHead.rows[0].cells].every((cell) => cell.scope === "col" && cell.textContent);
    const rows = [...table.tBodies[0].rows].every((row) => row.cells[0].scope === "row");
    return Boolean(table.caption?.textContent) && heads && rows;
}

/** Problems of the page for screen readers. */
function faults() {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const shown = (one) => one.getClientRects().length > 0;
    const controls = all("button, select, input, summary, a[href], progress, [role=tab], [role=region], [role=group]");
    const ids = all("[id]").map((one) => one.id);
    const ours = (id) => !id.startsWith("clip") && !id.includes("plotly"); // the library's are its own business
    const keys = ["aria-controls", "aria-labelledby", "aria-describedby"];
    const leadsNowhere = (one, key) =>
        one.hasAttribute(key) &&
        one
            .getAttribute(key)
            .split(" ")
            .some((id) => !document.getElementById(id));
    return {
        nameless: controls.filter((one) => shown(one) && !nameOf(one)).map((one) => one.outerHTML),
        doubled: ids.filter((id, place) => ids.indexOf(id) !== place && ours(id)),
        headless: all("table").filter((one) => !hasHeads(one)).length,
        images: all("[role=img]").filter((one) => !one.getAttribute("aria-label")).length,
        referred: all("*").filter((one) => keys.some((key) => leadsNowhere(one, key))).length,
    };
}

/** Count in `said` what a screen reader would be told. */
function listen() {
    window.said = [];
    const everything = { childList: true, characterData: true, subtree: true, attributes: true };
    for (const one of document.querySelectorAll("[aria-live], [role=status], [role=alert]")) {
        new MutationObserver((list) => window.said.push(...list)).observe(one, everything);
    }
}
