// The page of a job: its state, and a round of requests once a second.
//
// One round is in progress at a time: the job, then the details of the open tab. Answers are drawn in the next frame, into
// the existing elements. No request is sent while the page is paused or hidden.

import { forgetColours, loadSoon } from "./charts.js";
import { EdgePanel } from "./edge.js";
import { announce, byId, isOver, oncePerFrame, setText } from "./format.js";
import { Header, setUpTheme, Tabs, writeJobs } from "./frame.js";
import { Graph } from "./graph.js";
import { asItWas } from "./past.js";
import { EventsPanel, ListPanel, PastPanel, SettingsPanel, WorkersPanel } from "./panels.js";
import { openSource } from "./source.js";
import { VertexPanel } from "./vertex.js";
import { WhyPanel } from "./why.js";

const ROUND_MS = 1000;
const SLOW_ROUND_MS = 5000; // of jobs that are over, and of the list of jobs
const STALE_MS = 4000;
const MANY_SUBTASKS = 24; // timelines of more are requested less often, and are coarser

const source = openSource();

const state = {
    job: null, // its id
    jobs: [],
    view: null,
    detail: null, // of the selected vertex or edge
    past: null, // the last timeline
    workers: null, // with all their connections
    means: null, // of a job that is over: its whole timeline
    selected: null, // {kind: "vertex" | "edge", id}
    panel: null, // of the selected vertex or edge
    seconds: 60, // the length of timelines
    paused: false,
    answered: 0, // the time of the last answer
    trouble: "", // the error since then
};

const header = new Header();
const tabs = new Tabs(byId("tabs"), () => {
    writeHash();
    askSoon();
});
const graph = new Graph(byId("graph"), select);
const whyPanel = new WhyPanel(byId("why"), {
    ask: source.live ? () => asking(source.askWhy(state.job)) : null,
    select,
});
const panels = {
    lists: new ListPanel(byId("panel-lists"), select),
    past: new PastPanel(byId("panel-past"), { seconds: state.seconds, changed: stretch }),
    workers: new WorkersPanel(byId("panel-workers")),
    events: new EventsPanel(byId("panel-events")),
    settings: new SettingsPanel(byId("panel-settings")),
};

const show = oncePerFrame(() => {
    if (state.view === null) return;
    const view = viewShown();
    header.update(view);
    header.freshness(freshness(), view, state.trouble);
    graph.update(view, state.selected);
    whyPanel.update(view.diagnosis, view.graph);
    if (isOver(view.progress.status)) whyPanel.close();
    byId("pause").hidden = !source.live || isOver(view.progress.status);
    const job = state.jobs.find((one) => one.id === state.job);
    byId("cancel").hidden = !(job && job.allow_control && !isOver(view.progress.status));
    if (tabs.open === "selected") showSelected();
    else if (tabs.open === "past") panels.past.update(view, state.past);
    else panels[tabs.open].update(view, state.workers);
});

/** The view to show: for a job that is over, means instead of current figures. */
function viewShown() {
    const { view, means } = state;
    if (shown.view !== view || shown.means !== means) shown = { view, means, as: asItWas(view, means) };
    return shown.as;
}

let shown = { view: null, means: null, as: null };

function freshness() {
    if (!source.live) return "kept";
    if (state.trouble !== "" && Date.now() - state.answered > STALE_MS) return "stale";
    if (state.view === null) return "waiting";
    if (isOver(state.view.progress.status)) return "over";
    return state.paused ? "paused" : "live";
}

/** Show the selected vertex or edge; its panel is created when the selection changes. */
function showSelected() {
    const { selected } = state;
    if (selected === null) return;
    const view = viewShown();
    const { kind, id } = selected;
    const place = view.graph[kind === "vertex" ? "vertices" : "edges"].find((one) => one.id === id);
    if (!place) return;
    if (state.panel === null) {
        const parent = byId("panel-selected");
        const ask = source.live ? () => asking(source.samplePressure(state.job)) : null;
        state.panel =
            kind === "vertex"
                ? new VertexPanel(parent, { place, graph: view.graph, seconds: state.seconds, changed: stretch, ask })
                : new EdgePanel(parent, { edge: place, graph: view.graph, select });
    }
    if (kind === "vertex") {
        const progress = view.progress.vertices.find((one) => one.id === id);
        state.panel.update(progress, state.detail);
        state.panel.updatePast(state.past);
    } else {
        const passing = view.edges.find((one) => one.id === id);
        state.panel.update(
            passing,
            state.detail,
            view.progress.vertices.find((one) => one.id === place.producer),
        );
    }
}

/** A request with sampling, and its duration by the job's settings. */
function asking(promise) {
    const setting = (key) => state.view?.settings.find((one) => one.key === key)?.value ?? "";
    const samples = Number.parseInt(setting("backpressure.samples"), 10) || 100;
    const delay = Number.parseFloat(setting("backpressure.delay")) || 50;
    const unit = /\d\s*s/.test(setting("backpressure.delay")) ? 1000 : 1;
    return { promise, seconds: (samples * delay * unit) / 1000 };
}

function select(what) {
    const same = state.selected?.kind === what.kind && state.selected?.id === what.id;
    if (!same) {
        state.panel?.remove();
        Object.assign(state, { selected: what, panel: null, detail: null, past: null });
        const names = state.view?.graph.vertices.find((one) => what.kind === "vertex" && one.id === what.id);
        announce(names ? `${names.name} is shown below.` : "The edge is shown below.");
    }
    graph.mark(what);
    tabs.show("selected");
    reveal(byId("details"));
}

/** Scroll until the top of an element is visible. */
function reveal(element) {
    const { top } = element.getBoundingClientRect();
    if (top > innerHeight - 240 || top < 0) element.scrollIntoView({ block: "start" });
}

function stretch(seconds) {
    state.seconds = seconds;
    askSoon();
}

// Rounds of requests.

let round = 0; // only the newest may change the page
let timer = null;
let jobsAsked = 0;
let pastAsked = 0;

function askSoon() {
    pastAsked = 0;
    show();
    nextRound(0);
}

function nextRound(inMs) {
    clearTimeout(timer);
    timer = setTimeout(askAll, inMs);
}

async function askAll() {
    round += 1;
    const mine = round;
    const current = () => mine === round;
    const began = performance.now();
    try {
        await askJobs(began);
        if (!current()) return;
        if (state.job !== null && !(state.paused && state.view)) {
            const view = await source.job(state.job);
            if (!current()) return;
            state.view = view;
            show();
            if (isOver(view.progress.status) && state.means === null) {
                state.means = await source.wholePast(state.job, view.graph.vertices);
            }
            if (!current()) return;
        }
        if (state.view !== null) await askDetails(current, began);
        if (!current()) return;
        Object.assign(state, { answered: Date.now(), trouble: "" });
    } catch (error) {
        if (!current()) return;
        state.trouble =
            error.status === 401 || error.status === 403
                ? `refused (${error.message}): open the address that the driver printed`
                : error.message;
        header.freshness(freshness(), state.view, state.trouble);
    }
    show();
    if (!source.live || document.hidden || (state.paused && state.view)) return;
    const over = state.view === null || isOver(state.view.progress.status);
    nextRound(
        Math.max(
            ROUND_MS / 4,
            (over && state.trouble === "" && state.view !== null ? SLOW_ROUND_MS : ROUND_MS) -
                (performance.now() - began),
        ),
    );
}

async function askJobs(now) {
    if (state.job !== null && now - jobsAsked < SLOW_ROUND_MS) return;
    state.jobs = await source.jobs();
    jobsAsked = now;
    if (state.jobs.length === 0) {
        setText(byId("job-name"), "No job yet");
        return;
    }
    if (!state.jobs.some((one) => one.id === state.job)) {
        // A job that the server has removed stays on the page, unless another one runs.
        const running = state.jobs.filter((one) => !isOver(one.status));
        const next = (running.length > 0 ? running : state.jobs).at(-1);
        if (state.job === null || running.length > 0) chooseJob(next.id);
    }
    if (state.job !== null) writeJobs(state.jobs, state.job);
}

/** Request the details of the open tab. Timelines of many tasks are requested in every other round. */
async function askDetails(current, now) {
    const { selected, view, job } = state;
    const vertex =
        tabs.open === "selected" && selected?.kind === "vertex"
            ? view.graph.vertices.find((one) => one.id === selected.id)
            : null;
    const edge = tabs.open === "selected" && selected?.kind === "edge";
    const many = vertex ? vertex.parallelism > MANY_SUBTASKS : view.graph.vertices.length > MANY_SUBTASKS;
    const wantsPast = (vertex || tabs.open === "past") && now - pastAsked >= (many ? 1.8 : 0.9) * ROUND_MS;
    const stretchOf = { seconds: state.seconds, points: many ? 90 : 300, vertex: vertex ? vertex.id : null };
    const [detail, past, pressure, workers] = await Promise.all([
        vertex ? source.vertex(job, vertex.id) : edge ? source.edge(job, selected.id) : null,
        wantsPast ? source.timeline(job, stretchOf) : null,
        vertex && !state.panel?.flame?.pressure && state.detail === null ? source.pressure(job) : null,
        tabs.open === "workers" ? source.workers(job) : null,
    ]);
    if (!current()) return;
    state.workers = workers;
    if (detail !== null) state.detail = detail;
    if (past !== null) {
        state.past = past;
        pastAsked = now;
    }
    if (vertex && pressure) {
        showSelected();
        state.panel?.flame.update(pressure);
    }
}

function chooseJob(id) {
    if (id === state.job) return;
    state.panel?.remove();
    byId("panel-selected").replaceChildren();
    Object.assign(state, { job: id, view: null, detail: null, past: null, panel: null, means: null });
    if (fromHash.job !== id) state.selected = null;
    whyPanel.clear();
    writeHash();
}

// The address after '#' says what is shown, so that it can be gone back to and passed on.

let fromHash = {};

function readHash() {
    const hash = new URLSearchParams(location.hash.slice(1));
    fromHash = { job: hash.get("job") };
    const pick = (kind) => (/^\d{1,9}$/.test(hash.get(kind) ?? "") ? { kind, id: Number(hash.get(kind)) } : null);
    const selected = pick("vertex") ?? pick("edge");
    if (fromHash.job !== null && fromHash.job !== state.job) chooseJob(fromHash.job);
    if (selected !== null && (selected.kind !== state.selected?.kind || selected.id !== state.selected?.id)) {
        state.panel?.remove();
        Object.assign(state, { selected, panel: null, detail: null, past: null });
    }
    if (hash.get("tab") !== null && hash.get("tab") !== tabs.open) tabs.show(hash.get("tab"));
}

function writeHash() {
    const say = new URLSearchParams();
    if (state.job !== null) say.set("job", state.job);
    if (state.selected !== null) say.set(state.selected.kind, state.selected.id);
    say.set("tab", tabs.open);
    const text = `#${say}`;
    fromHash = { job: state.job };
    if (text !== location.hash) history.replaceState(null, "", text);
}

// Controls.

byId("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    byId("pause").setAttribute("aria-pressed", String(state.paused));
    setText(byId("pause"), state.paused ? "Resume" : "Pause");
    if (state.paused) show();
    else askSoon();
});
byId("job-select").addEventListener("change", (event) => {
    chooseJob(event.target.value);
    askSoon();
});
byId("zoom-in").addEventListener("click", () => graph.zoom(1.25));
byId("zoom-out").addEventListener("click", () => graph.zoom(0.8));
byId("zoom-fit").addEventListener("click", () => graph.fit());
byId("cancel").addEventListener("click", () => byId("cancel-dialog").showModal());
byId("cancel-dialog").addEventListener("close", async (event) => {
    if (event.target.returnValue !== "cancel") return;
    event.target.returnValue = "";
    try {
        await source.cancel(state.job);
        announce("The job is being cancelled.");
    } catch (error) {
        announce(`Not cancelled: ${error.message}.`);
    }
    askSoon();
});
document.addEventListener("visibilitychange", () => {
    if (!document.hidden) nextRound(0);
});
addEventListener("hashchange", readHash);
byId("pause").hidden = !source.live;
setUpTheme(() => {
    forgetColours();
    state.panel?.redraw?.();
    state.panel?.flame?.redraw();
    panels.past.redraw();
    show();
});
readHash();
nextRound(0);
loadSoon();
