// The elements of the graph: the button of a vertex, the label of an edge, the bar of shares (also in tables).

import { byteRate, count, h, mainState, percent, rate, setAttribute, setText } from "./format.js";

export function vertexButton(vertex, choose) {
    const state = h("span", { class: "state" });
    const most = h("span", { class: "most" });
    const bar = shareBar();
    const rates = h("span", { class: "rates" }, h("span"), h("span"));
    const par = h("span", { class: "par" });
    const button = h(
        "button",
        {
            class: "vertex",
            type: "button",
            title: vertex.operators.join(" → "),
            "data-vertex": vertex.id,
            onclick: choose,
        },
        h("span", { class: "head" }, h("span", { class: "name" }, vertex.name), par),
        h("span", { class: "head" }, state, most),
        bar,
        rates,
    );
    return { button, par, state, most, bar, rates };
}

export function writeVertex(parts, figures, place) {
    const main = mainState(figures);
    setAttribute(parts.button, "data-state", main.state);
    parts.button.style.setProperty("--share", `${Math.round(main.share * 100)}%`);
    setText(parts.state, main.label);
    const where = figures.past ? figures.state : place.in_driver ? "driver" : "";
    setText(parts.par, `×${place.parallelism} ${where}`.trimEnd());
    // The mean hides one task that limits the others.
    const uneven = main.state === "busy" && main.label.startsWith("Busy") && figures.max_busy - figures.busy >= 0.1;
    setText(parts.most, uneven ? `busiest ${percent(figures.max_busy)}` : "");
    writeBar(parts.bar, figures);
    setText(parts.rates.firstChild, place.source ? "" : `in ${rate(figures.records_in_per_s)}`);
    setText(parts.rates.lastChild, place.sink ? "" : `out ${rate(figures.records_out_per_s)}`);
}

/** Busy, waiting for coroutines, back-pressured and idle as one bar: each part has its own pattern and colour. */
export function shareBar() {
    const parts = ["busy", "waiting", "back", "idle"].map((state) => h("span", { class: `share ${state}` }));
    return h("span", { class: "bar", "aria-hidden": "true" }, ...parts);
}

export function writeBar(bar, figures) {
    const shares = [figures.busy, figures.waiting ?? 0, figures.back_pressured, figures.idle];
    shares.forEach((share, index) => {
        const width = `${(share * 100).toFixed(1)}%`;
        if (bar.children[index].style.width !== width) bar.children[index].style.width = width;
    });
}

export function edgeButton(edge, graph, choose) {
    const name = (id) => graph.vertices.find((one) => one.id === id)?.name ?? `vertex ${id}`;
    const [records, size, backlog] = [h("span", {}), h("span", {}), h("span", { class: "backlog" })];
    const place = h(
        "span",
        { class: "unseen" },
        `Edge from ${name(edge.producer)} to ${name(edge.consumer)}, ${edge.ship}: `,
    );
    const button = h(
        "button",
        { class: "edge", type: "button", title: `${edge.ship} exchange`, "data-edge": edge.id, onclick: choose },
        place,
        records,
        size,
        backlog,
    );
    return { button, records, size, backlog };
}

/** An edge with a backlog of `much` or more is marked: it limits its producer. */
export function writeEdge(parts, passing, much) {
    setText(parts.records, passing ? rate(passing.records_per_s) : "–");
    setText(parts.size, passing ? byteRate(passing.bytes_per_s) : "–");
    setText(parts.backlog, passing ? `backlog ${count(passing.backlog)}` : "");
    const held = (passing?.backlog ?? 0) >= much;
    parts.button.classList.toggle("held", held);
    parts.line.classList.toggle("held", held);
}
