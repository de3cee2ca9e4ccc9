// Figures as people read them, and the few DOM calls that everything else is made of.
// Text always goes in as text: names and keys are the user's, and none of them is ever parsed as HTML.

const UNITS = ["", "k", "M", "G", "T"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];
const LIMIT = 0.8; // a task that is busy or back-pressured for so much of the time has no room left
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

/** 12345 -> '12.3 k'; whole numbers below 1000 stay whole. */
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

/** A moment of the wall clock, as the reader's clock has it. */
export function clock(ms) {
    const at = new Date(ms);
    const two = (n) => String(n).padStart(2, "0");
    return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/**
 * What the tasks of a vertex mostly do, and how that is said: {state, share, label}. One task that is at its limit while the
 * others wait is what matters of them.
 */
export function mainState(figures) {
    const { state: life, busy, back_pressured: back, idle, max_busy: mostBusy, max_back_pressured: mostBack } = figures;
    if (life !== "running" && !(figures.past && busy + back + idle > 0))
        return { state: life, share: 0, label: capital(life) };
    const said = (state, share, words) => ({ state, share, label: `${words} ${percent(share)}` });
    if (busy + back + idle <= 0) return { state: "idle", share: 0, label: "No figures yet" };
    if (back >= busy && back >= idle) return said("back", back, "Back-pressured");
    if (busy >= idle) return said("busy", busy, "Busy");
    if (mostBusy >= LIMIT) return said("busy", mostBusy, "One task busy");
    if (mostBack >= LIMIT) return said("back", mostBack, "One held back");
    return said("idle", idle, "Idle");
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

/** Set text, but only where it is another: the browser has nothing to do for what stays as it is. */
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

/** Say it once to who listens to the page; meant for changes of status, not for figures. */
export function announce(text) {
    setText(byId("announcer"), text);
}

/** A function that runs at most once per frame, however often it is called. */
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
