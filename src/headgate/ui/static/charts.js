// Charts, drawn by plotly, which is loaded for the first chart. Each chart has a table with the same figures; colours are
// those of the page, and every series has its own pattern or dash.

import { h, setText } from "./format.js";
import { Table } from "./tables.js";

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: "reset" };
const SETTLED_MS = 2500;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';

let loading = null;
let palette = null;
let drawQueue = Promise.resolve(); // of drawings: one per frame, so that the page stays responsive

// Charts outside of the window are drawn when they become visible.
const sight = new IntersectionObserver(
    (entries) => {
        for (const entry of entries) seen.get(entry.target)?.(entry.isIntersecting);
    },
    { rootMargin: "100px" },
);
const seen = new WeakMap(); // the element of a chart -> its callback

/** Load the library while the browser is idle, before the first chart needs it. */
export function loadSoon() {
    const idle = window.requestIdleCallback ?? ((work) => work());
    setTimeout(() => idle(() => plotly().catch(() => {})), SETTLED_MS);
}

function nextFrame() {
    return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
}

function plotly() {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    loading ??= new Promise((resolve, reject) => {
        const script = h("script", { src: "/static/plotly.min.js" });
        script.addEventListener("load", () => resolve(window.Plotly));
        script.addEventListener("error", () => {
            loading = null;
            reject(new Error("the library that draws charts did not load"));
        });
        document.head.append(script);
    });
    return loading;
}

/** The page's colours; read again after `forgetColours`, when the theme has changed. */
export function colours() {
    if (palette === null) {
        const style = getComputedStyle(document.documentElement);
        const names = [
            "text",
            "muted",
            "line",
            "surface",
            "sunken",
            "raised",
            "accent",
            "heat-0",
            "heat-1",
            "heat-2",
            "back-pale",
            "idle-tint",
            "busy-tint",
        ];
        for (const state of ["busy", "back", "idle"]) names.push(state, `on-${state}`);
        palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    }
    return palette;
}

export function forgetColours() {
    palette = null;
}

/** Text for plotly, which interprets some HTML: in the name of an operator, '<lambda>' is no tag. */
export function plain(text) {
    return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

export class Chart {
    #place;
    #wanted = null;
    #drawing = false;
    #inSight = false;
    #height;

    /** `label` describes the chart for screen readers. */
    constructor(parent, { label, height = 200 }) {
        this.#height = height;
        this.#place = h("div", { class: "chart", role: "img", "aria-label": label });
        this.#place.style.height = `${height}px`;
        parent.append(this.#place);
        seen.set(this.#place, (now) => {
            this.#inSight = now;
            this.#start();
        });
        sight.observe(this.#place);
    }

    /** Draw; of several requests during a drawing only the last is done. */
    draw(traces, layout = {}) {
        this.#wanted = [traces, layout];
        this.#start();
    }

    #start() {
        if (this.#inSight && this.#wanted !== null && !this.#drawing) this.#next();
    }

    resize(height, most = null) {
        this.#height = height;
        this.#place.style.height = `${height}px`;
        this.#place.style.maxWidth = most === null ? "" : `${most}px`;
    }

    async #next() {
        this.#drawing = true;
        try {
            const library = await plotly();
            while (this.#wanted !== null && this.#inSight) {
                drawQueue = drawQueue.then(nextFrame);
                await drawQueue;
                if (!this.#inSight || this.#wanted === null) break;
                const [traces, layout] = this.#wanted;
                this.#wanted = null;
                const whole = { ...base(this.#height), ...layout };
                // Few ticks, so that times do not overlap on a narrow screen.
                if (whole.xaxis?.type === "date")
                    whole.xaxis.nticks = Math.max(2, Math.floor(this.#place.clientWidth / 120));
                await library.react(this.#place, traces, whole, CONFIG);
                // The library measures text in this element; it is invisible.
                document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
            }
        } catch (error) {
            setText(this.#place, `No chart: ${error.message}.`);
        } finally {
            this.#drawing = false;
        }
    }

    remove() {
        this.#wanted = null;
        this.#inSight = false;
        sight.unobserve(this.#place);
        if (window.Plotly) window.Plotly.purge(this.#place);
        this.#place.remove();
    }
}

function base(height) {
    const colour = colours();
    return {
        height,
        margin: { l: 48, r: 8, t: 6, b: 24 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: FONT, size: 11, color: colour.muted },
        showlegend: true,
        legend: {
            orientation: "h",
            x: 0,
            y: 1.02,
            yanchor: "bottom",
            font: { size: 11 },
            itemclick: false,
            itemdoubleclick: false,
            traceorder: "normal",
        },
        hovermode: "x unified",
        hoverlabel: {
            bgcolor: colour.raised,
            bordercolor: colour.line,
            font: { family: FONT, size: 11, color: colour.text },
        },
        yaxis: axis({}),
        dragmode: false,
    };
}

/** An axis in the page's colours; `more` overrides. */
export function axis(more) {
    const colour = colours();
    return {
        gridcolor: colour.line,
        linecolor: colour.line,
        zeroline: false,
        tickfont: { color: colour.muted, size: 11 },
        fixedrange: true,
        ...more,
    };
}

/** The figures of a chart as a table, created when the reader opens it. `rows` is called then and on `update`. */
export class Figures {
    #details;
    #table = null;
    #make;
    #rows = [];

    constructor(parent, summary, make) {
        this.#make = make;
        this.#details = h("details", { class: "as-table" }, h("summary", {}, summary));
        this.#details.addEventListener("toggle", () => this.update(this.#rows));
        parent.append(this.#details);
    }

    update(rows) {
        this.#rows = rows;
        if (!this.#details.open) return;
        this.#table ??= new Table(this.#details, this.#make);
        this.#table.update(typeof rows === "function" ? rows() : rows);
    }
}
