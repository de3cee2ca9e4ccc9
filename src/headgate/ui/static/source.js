// The source of the page's data: the server, or, in a report, a document inside the page.
// Both have the same functions, which return the shapes of headgate.observe.

const PATIENCE_MS = 10000;
const FEW_VERTICES = 24;
const SAMPLING_PATIENCE_MS = 60000; // sampling takes backpressure.samples x delay

export class Unanswered extends Error {
    constructor(text, status = 0) {
        super(text);
        this.status = status; // of HTTP; 0: there was no answer
    }
}

class Server {
    live = true;

    async #ask(path, { method = "GET", patience = PATIENCE_MS } = {}) {
        let answer;
        try {
            answer = await fetch(`/api/${path}`, {
                method,
                cache: "no-store",
                credentials: "same-origin",
                headers: method === "GET" ? {} : { "Content-Type": "application/json" },
                signal: AbortSignal.timeout(patience),
            });
        } catch (error) {
            throw new Unanswered(
                error.name === "TimeoutError" ? "the driver is slow to answer" : "the driver does not answer",
            );
        }
        if (answer.status === 204) return null;
        let body = null;
        try {
            body = await answer.json();
        } catch {
            if (answer.ok) throw new Unanswered("the answer was cut short");
        }
        if (!answer.ok) throw new Unanswered((body && body.error) || `HTTP ${answer.status}`, answer.status);
        return body;
    }

    jobs() {
        return this.#ask("jobs");
    }

    job(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}`);
    }

    vertex(id, vertex) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/vertices/${vertex}`);
    }

    workers(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/workers`);
    }

    edge(id, edge) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/edges/${edge}`);
    }

    timeline(id, { seconds, points, vertex = null }) {
        const of = vertex === null ? "" : `&vertex=${vertex}`;
        return this.#ask(`jobs/${encodeURIComponent(id)}/timeline?seconds=${seconds}&points=${points}${of}`);
    }

    /** The history of all vertices; for few vertices also that of each task. */
    async wholePast(id, vertices) {
        const stretch = { seconds: 600, points: 300 };
        const past = await this.timeline(id, stretch);
        if (past === null || vertices.length > FEW_VERTICES) return past;
        const each = await Promise.all(vertices.map((one) => this.timeline(id, { ...stretch, vertex: one.id })));
        return { ...past, tasks: each.flatMap((one) => one.tasks) };
    }

    pressure(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/pressure`);
    }

    samplePressure(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/pressure`, { method: "POST", patience: SAMPLING_PATIENCE_MS });
    }

    why(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/why`);
    }

    askWhy(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/why`, { method: "POST", patience: SAMPLING_PATIENCE_MS });
    }

    cancel(id) {
        return this.#ask(`jobs/${encodeURIComponent(id)}/cancel`, { method: "POST", patience: SAMPLING_PATIENCE_MS });
    }
}

class Kept {
    live = false;
    #view;

    constructor(view) {
        this.#view = view;
    }

    async jobs() {
        const { job, name, status } = this.#view.progress;
        return [{ id: job, name, status, started_ms: 0, allow_control: false }];
    }

    async job() {
        return this.#view;
    }

    async workers() {
        return this.#view.progress.workers;
    }

    async vertex(_id, vertex) {
        return this.#view.progress.vertices.find((one) => one.id === vertex) ?? null;
    }

    async edge(_id, edge) {
        const place = this.#view.graph.edges.find((one) => one.id === edge);
        const ends = (id) => this.#view.progress.vertices.find((one) => one.id === id);
        const [producer, consumer] = [ends(place.producer), ends(place.consumer)];
        const channels = [];
        for (const task of consumer.subtasks) {
            for (const channel of task.channels) {
                if (channel.exchange === edge) channels.push({ consumer: task.subtask, ...channel });
            }
        }
        return { exchange: edge, producers: producer.parallelism, consumers: consumer.parallelism, channels };
    }

    async timeline(_id, { seconds, vertex = null }) {
        const whole = this.#view.timeline;
        if (!whole || whole.steps === 0) return null;
        const steps = Math.min(whole.steps, Math.ceil((seconds * 1000) / whole.step_ms));
        const tasks = whole.tasks.filter((one) => (vertex === null ? one.subtask === -1 : one.vertex === vertex));
        return {
            start_ms: whole.start_ms + (whole.steps - steps) * whole.step_ms,
            step_ms: whole.step_ms,
            steps,
            tasks: tasks.map((task) => lastSteps(task, whole.steps - steps)),
        };
    }

    async wholePast() {
        return this.#view.timeline;
    }

    async pressure() {
        return this.#view.pressure;
    }

    async why() {
        return this.#view.diagnosis;
    }
}

/** A task's line without its first steps. */
function lastSteps(task, without) {
    const line = {};
    for (const [name, value] of Object.entries(task)) line[name] = Array.isArray(value) ? value.slice(without) : value;
    return line;
}

export function openSource() {
    const kept = document.getElementById("headgate-view");
    return kept === null ? new Server() : new Kept(JSON.parse(kept.textContent));
}
