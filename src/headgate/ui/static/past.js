// Figures from timelines: of a vertex, second by second, and of a job that is over.

import { isOver } from "./format.js";

const SUMS = ["records_in", "records_out", "in_queued", "backlog"];
const MEANS = ["busy", "idle", "back_pressured", "waiting", "in_pool", "out_pool"];

/** The line of a vertex: the one in the timeline, or one computed from those of its tasks. */
export function wholeLine(timeline, vertex) {
    const tasks = timeline.tasks.filter((one) => one.vertex === vertex);
    const given = tasks.find((one) => one.subtask === -1);
    if (given || tasks.length === 0) return given ?? null;
    const line = { vertex, subtask: -1 };
    for (const key of [...SUMS, ...MEANS]) {
        line[key] = Array.from({ length: timeline.steps }, (_, step) => {
            const values = tasks.map((one) => one[key]?.[step] ?? -1).filter((value) => value >= 0);
            if (values.length === 0) return -1;
            const sum = values.reduce((all, one) => all + one, 0);
            return MEANS.includes(key) ? sum / values.length : sum;
        });
    }
    return line;
}

/** A line in steps of a second or more. */
export function secondsOf(timeline, line) {
    const per = Math.max(1, Math.round(1000 / timeline.step_ms));
    const rows = [];
    for (let from = 0; from + per <= timeline.steps; from += per) {
        const part = (key) => line[key].slice(from, from + per).filter((value) => value >= 0);
        const sum = (key) => part(key).reduce((all, one) => all + one, 0);
        const mean = (key) => (part(key).length ? sum(key) / part(key).length : null);
        const perSecond = (key) => (part(key).length ? (mean(key) * 1000) / timeline.step_ms : null);
        const row = { at: timeline.start_ms + from * timeline.step_ms };
        for (const key of ["busy", "back_pressured", "idle"]) row[key] = mean(key) === null ? null : mean(key) / 1000;
        for (const key of ["records_in", "records_out"]) row[key] = perSecond(key);
        for (const key of ["backlog", "in_queued"]) row[key] = part(key).length ? Math.max(...part(key)) : null;
        rows.push(row);
    }
    return rows;
}

/**
 * The view of a job that is over, with means instead of its rates and shares, which are 0: rates over the whole run, and
 * shares over its history. A running job is returned unchanged.
 */
export function asItWas(view, timeline) {
    const { status, uptime_s: uptime } = view.progress;
    if (!isOver(status) || uptime <= 0) return view;
    const vertices = view.progress.vertices.map((one) => {
        const line = timeline ? wholeLine(timeline, one.id) : null;
        const was = { ...one, past: true };
        for (const key of ["records_in", "records_out", "bytes_in", "bytes_out"])
            was[`${key}_per_s`] = one[key] / uptime;
        if (line === null) return was;
        for (const key of ["busy", "idle", "back_pressured", "waiting"]) was[key] = meanOf(line[key] ?? []) / 1000;
        was.max_busy = Math.max(was.busy, ...linesOf(timeline, one.id).map((task) => meanOf(task.busy) / 1000));
        was.max_back_pressured = Math.max(
            was.back_pressured,
            ...linesOf(timeline, one.id).map((task) => meanOf(task.back_pressured) / 1000),
        );
        return was;
    });
    return { ...view, progress: { ...view.progress, vertices }, edges: edgesAsTheyWere(view, vertices) };
}

function linesOf(timeline, vertex) {
    return timeline.tasks.filter((one) => one.vertex === vertex && one.subtask >= 0);
}

function meanOf(values) {
    const known = values.filter((one) => one >= 0);
    return known.length === 0 ? 0 : known.reduce((sum, one) => sum + one, 0) / known.length;
}

/** As in `headgate.observe.edges`: a rate is known if the consumer has one input, or the producer one output. */
function edgesAsTheyWere(view, vertices) {
    const named = new Map(vertices.map((one) => [one.id, one]));
    const ends = new Map(view.graph.edges.map((one) => [one.id, one]));
    const alone = (key, id) => view.graph.edges.filter((one) => one[key] === id).length === 1;
    return view.edges.map((edge) => {
        const { producer, consumer } = ends.get(edge.id);
        const [from, to] = [named.get(producer), named.get(consumer)];
        if (alone("consumer", consumer))
            return { ...edge, records_per_s: to.records_in_per_s, bytes_per_s: to.bytes_in_per_s };
        if (alone("producer", producer))
            return { ...edge, records_per_s: from.records_out_per_s, bytes_per_s: from.bytes_out_per_s };
        return { ...edge, records_per_s: null, bytes_per_s: null };
    });
}
