// The page around the graph: the header with status and controls, tabs, the banner, the theme.

import {
    announce,
    byId,
    bytes,
    capital,
    clock,
    count,
    duration,
    h,
    isOver,
    percent,
    rate,
    setAttribute,
    setText,
} from "./format.js";
import { figures } from "./tables.js";

const THEME_KEY = "headgate-theme";

/** Tabs with the usual keys; `changed` is called with the name of the open tab. */
export class Tabs {
    #tabs;
    #changed;
    open;

    constructor(list, changed) {
        this.#tabs = [...list.querySelectorAll("[role=tab]")];
        this.#changed = changed;
        this.open = nameOf(this.#tabs[0]);
        for (const tab of this.#tabs) tab.addEventListener("click", () => this.show(nameOf(tab)));
        list.addEventListener("keydown", (event) => this.#key(event));
    }

    show(name) {
        const tab = this.#tabs.find((one) => nameOf(one) === name);
        if (!tab) return;
        for (const one of this.#tabs) {
            const on = one === tab;
            setAttribute(one, "aria-selected", on);
            setAttribute(one, "tabindex", on ? 0 : -1);
            byId(one.getAttribute("aria-controls")).hidden = !on;
        }
        this.open = name;
        this.#changed(name);
    }

    #key(event) {
        const here = this.#tabs.indexOf(document.activeElement);
        const last = this.#tabs.length - 1;
        const goals = {
            ArrowRight: here === last ? 0 : here + 1,
            ArrowLeft: here === 0 ? last : here - 1,
            Home: 0,
            End: last,
        };
        if (here < 0 || !(event.key in goals)) return;
        event.preventDefault();
        const tab = this.#tabs[goals[event.key]];
        this.show(nameOf(tab));
        tab.focus();
    }
}

function nameOf(tab) {
    return tab.id.slice("tab-".length);
}

/** Light or dark: the choice of the reader, which is stored, or that of the system. */
export function setUpTheme(changed) {
    const select = byId("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
        const dark = select.value === "dark" || (select.value === "system" && system.matches);
        setAttribute(document.documentElement, "data-theme", dark ? "dark" : "light");
        changed();
    };
    try {
        select.value = localStorage.getItem(THEME_KEY) ?? "system";
    } catch {
        // A page that was opened from a file may have no storage.
    }
    if (select.value === "") select.value = "system";
    select.addEventListener("change", () => {
        try {
            localStorage.setItem(THEME_KEY, select.value);
        } catch {
            // The choice is not stored.
        }
        apply();
    });
    system.addEventListener("change", apply);
    apply();
}

/** The status, the age of the figures, and a summary of the job. */
export class Header {
    #status = null;
    #write;

    constructor() {
        const [list, write] = figures([
            ["Read by sources", "read", "records per second that sources read"],
            ["Reach sinks", "reach", "records per second that sinks receive"],
            ["Most back-pressured", "back"],
            ["Busiest task", "busy"],
            ["Backlog", "backlog", "buffers that wait at producers, on all edges"],
            ["Slowest watermark", "lag"],
            ["Workers", "workers"],
            ["Memory", "memory", "of all workers' processes"],
            ["CPUs", "cpus", "used by all workers' processes"],
        ]);
        this.#write = write;
        byId("summary").append(list);
    }

    update(view) {
        const { status, name, uptime_s: uptime, job } = view.progress;
        setText(byId("job-name"), name || `job ${job}`);
        document.title = `${name || job} (${status}) - headgate`;
        setText(byId("job-status"), capital(status));
        setAttribute(byId("job-status"), "data-status", status);
        setText(byId("job-uptime"), `${isOver(status) ? "ran" : "up"} ${duration(uptime)}`);
        setText(byId("version"), `headgate ${view.headgate}, job ${job}`);
        byId("failure").hidden = !view.error;
        setText(byId("failure-text"), view.error ?? "");
        if (this.#status !== null && this.#status !== `${job} ${status}`) announce(`Job ${name}: ${status}.`);
        this.#status = `${job} ${status}`;
        this.#write(summary(view));
    }

    /** `state` is live, paused, stale, over or kept. */
    freshness(state, view, why = "") {
        const at = view === null ? "" : clock(view.at_ms);
        const texts = {
            waiting: "Waiting for data",
            live: `Live, ${at}`,
            paused: `Paused at ${at}`,
            stale: view === null ? "No data" : `Stale: figures of ${at}`,
            over: `Over at ${at}; figures are means`,
            kept: `Report of ${at}${view !== null && isOver(view.progress.status) ? "; figures are means" : ""}`,
        };
        setText(byId("live"), texts[state]);
        setAttribute(byId("live"), "data-live", state);
        banner(state === "stale" ? capital(why || "the driver does not answer") + "." : "");
    }
}

function banner(text) {
    const element = byId("banner");
    if (element.hidden !== (text === "")) element.hidden = text === "";
    setText(element, text);
}

function summary(view) {
    const places = new Map(view.graph.vertices.map((one) => [one.id, one]));
    const vertices = view.progress.vertices;
    const sum = (values) => values.reduce((all, one) => all + one, 0);
    const greatest = (key) =>
        vertices.reduce((best, one) => (best === null || one[key] > best[key] ? one : best), null);
    const [back, busy] = [greatest("max_back_pressured"), greatest("max_busy")];
    const lags = vertices.map((one) => one.watermark_lag_ms).filter((one) => one !== null);
    const workers = view.progress.workers;
    const there = workers.filter((one) => one.pid !== 0);
    const cpus = there.map((one) => one.cpu).filter((one) => one !== null);
    const named = (one, share) => (one === null || share <= 0.005 ? "none" : `${percent(share)} ${one.name}`);
    return {
        read: rate(sum(vertices.filter((one) => places.get(one.id)?.source).map((one) => one.records_out_per_s))),
        reach: rate(sum(vertices.filter((one) => places.get(one.id)?.sink).map((one) => one.records_in_per_s))),
        back: named(back, back?.max_back_pressured ?? 0),
        busy: named(busy, busy?.max_busy ?? 0),
        backlog: `${count(sum(view.edges.map((one) => one.backlog)))} buffers`,
        lag: lags.length === 0 ? "no watermarks" : duration(Math.max(...lags) / 1000),
        workers: there.length === workers.length ? String(workers.length) : `${there.length} of ${workers.length}`,
        memory: bytes(sum(processes(there).map((one) => one.memory_bytes))),
        cpus: cpus.length === 0 ? "–" : sum(processes(there).map((one) => one.cpu ?? 0)).toFixed(2),
    };
}

/** One worker of each process: workers that are threads of one process share its memory. */
function processes(workers) {
    return [...new Map(workers.map((one) => [`${one.host} ${one.pid}`, one])).values()];
}

/** Show the list of jobs, if there are several. */
export function writeJobs(jobs, chosen) {
    const select = byId("job-select");
    byId("job-choice").hidden = jobs.length < 2;
    const texts = jobs.map((one) => [one.id, `${one.name || one.id} (${one.status})`]);
    const same =
        texts.length === select.options.length &&
        texts.every(([id, text], index) => select.options[index].value === id && select.options[index].text === text);
    if (!same) select.replaceChildren(...texts.map(([id, text]) => h("option", { value: id }, text)));
    if (select.value !== chosen) select.value = chosen;
}
