// Figures as text, and helpers for the DOM.
// Text is always set as text: names and keys are those of users, and are never parsed as HTML.

const UNITS = ["", "k", "M", "G", "T"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];
const LIMIT = 0.8; // a task that is busy or back-pressured for this share of the time is at its limit
const NONE = "–"; // an en dash: not known
const NBSP = " ";

export function isOver(status) {
    return status === "finished" || status === "failed" || status === "cancelled";
}

function threeDigits(value) {
    if (value >= 100) return value.toFixed(0);
    if (value >= 10) return value.toFixed(1);
    return value.toFixed(2);
}

/** 12345 -> '12.3 k'; whole numbers below 1000 have no decimals. */
export function count(value) {
    if (value === null || value === undefined) return NONE;
    let rest = Math.abs(value);
    let unit = 0;
    while (rest >= 999.5 && unit < UNITS.length - 1) {
        rest /= 1000;
        unit += 1;
    }
    const sign = value < 0 ? "-" : "";
    if (unit === 0) return sign + (Number.isInteger(rest) || rest >= 100 ? rest.toFixed(0) : rest.toFixed(1));
    return `${sign}${threeDigits(rest)}${NBSP}${UNITS[unit]}`;
}

/** 12345 -> '12.1 KiB'. */
export function bytes(value) {
    if (value === null || value === undefined) return NONE;
    let rest = value;
    let unit = 0;
    while (rest >= 1023.5 && unit < BINARY.length - 1) {
        rest /= 1024;
        unit += 1;
    }
    return `${unit === 0 ? rest.toFixed(0) : threeDigits(rest)}${NBSP}${BINARY[unit]}`;
}

export function rate(value) {
    return value === null || value === undefined ? NONE : `${count(value)}/s`;
}

export function byteRate(value) {
    return value === null || value === undefined ? NONE : `${bytes(value)}/s`;
}

/** A share from 0 to 1 -> '82 %'. */
export function percent(share) {
    return share === null || share === undefined ? NONE : `${Math.round(share * 100)}${NBSP}%`;
}

export function millis(value) {
    if (value === null || value === undefined) return NONE;
    if (value < 10) return `${value.toFixed(1)}${NBSP}ms`;
    if (value < 10000) return `${Math.round(value)}${NBSP}ms`;
    return duration(value / 1000);
}

/** Seconds -> '4 s', '3 min 05 s', '2 h 07 min'. */
export function duration(seconds) {
    const whole = Math.floor(seconds);
    if (whole < 60) return `${whole}${NBSP}s`;
    const two = (n) => String(n).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)}${NBSP}min${NBSP}${two(whole % 60)}${NBSP}s`;
    return `${Math.floor(whole / 3600)}${NBSP}h${NBSP}${two(Math.floor((whole % 3600) / 60))}${NBSP}min`;
}

/** A time of day in the reader's time zone. */
export function clock(ms) {
    const at = new Date(ms);
    const two = (n) => String(n).padStart(2, "0");
    return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/**
 * The main state of a vertex's tasks: {state, share, label}. One task at its limit counts more than the mean of all.
 */
export function mainState(figures) {
    const { state: life, busy, back_pressured: back, idle, max_busy: mostBusy, max_back_pressured: mostBack } = figures;
    const waiting = figures.waiting ?? 0;
    if (life !== "running" && !(figures.past && busy + back + idle + waiting > 0))
        return { state: life, share: 0, label: capital(life) };
    const labelled = (state, share, words) => ({ state, share, label: `${words} ${percent(share)}` });
    if (busy + back + idle + waiting <= 0) return { state: "idle", share: 0, label: "No figures yet" };
    if (waiting > Math.max(busy, back, idle)) return labelled("busy", waiting, "Waiting");
    if (back >= busy && back >= idle) return labelled("back", back, "Back-pressured");
    if (busy >= idle) return labelled("busy", busy, "Busy");
    if (mostBusy >= LIMIT) return labelled("busy", mostBusy, "One task busy");
    if (mostBack >= LIMIT) return labelled("back", mostBack, "One back-pressured");
    return labelled("idle", idle, "Idle");
}

export function capital(text) {
    return text.charAt(0).toUpperCase() + text.slice(1);
}

/** An element: h("td", {class: "num"}, "text", child). Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else if (value !== null && value !== undefined && value !== false) {
            element.setAttribute(name, value === true ? "" : String(value));
        }
    }
    element.append(...children);
    return element;
}

/** Set the text of an element if it has changed: the browser has no work for the rest. */
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
    const text = String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function byId(id) {
    return document.getElementById(id);
}

/** Announce a text to screen readers; for changes of status, not for figures. */
export function announce(text) {
    setText(byId("announcer"), text);
}

/** Return a function that runs at most once per frame. */
export function oncePerFrame(work) {
    let asked = false;
    return () => {
        if (asked) return;
        asked = true;
        requestAnimationFrame(() => {
            asked = false;
            work();
        });
    };
}
