//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// The engines of the run. Two do their work at the endpoint; alerts is the broker's own.
const (
	engineRemote = "chaos-remote"
	engineLocked = "chaos-locked" // changes the registry, so its runs take the registry's lock
	engineAlerts = "alerts"

	queueRemote = "remote-queue"
	queueLocked = "locked-queue"
	queueAlerts = "monitor-alerts-queue"

	operationAlert = "process"

	channelForwards = "forwards" // every alert is forwarded into it
	consumerAlerted = channelForwards + "/alerted"
)

// The settings of engines: short, as all others.
const (
	engineRetries = 2
	alertRetries  = 5
	engineLease   = 3 * time.Second
)

// engineCast are the engines, each the consumer of its queue. Nobody purges, resolves or expires: what dies is retried.
func engineCast() []*spec {
	of := func(engine, queue string, retries int) *spec {
		return &spec{id: engine, consumerInfo: consumerInfo{
			Key: queue + "/" + engine, Channel: queue, Engine: engine, Retries: retries, Redrive: true,
		}}
	}
	return []*spec{of(engineRemote, queueRemote, engineRetries), of(engineLocked, queueLocked, engineRetries), of(engineAlerts, queueAlerts, alertRetries)}
}

func operationsOf(engine string) []string {
	switch engine {
	case engineRemote:
		return []string{"work", "rework"}
	case engineLocked:
		return []string{"change"}
	}
	return []string{operationAlert}
}

// engineSettings is REDRIVE_ENGINES.
func engineSettings(endpoint string) string {
	type setting struct {
		Queue      string   `json:"queue,omitempty"`
		Operations []string `json:"operations,omitempty"`
		Endpoint   string   `json:"endpoint,omitempty"`
		Retries    int      `json:"maxRetryAttempts"`
		Backoff    []string `json:"backoff"`
		Registry   bool     `json:"registryLock"`
	}
	settings := map[string]setting{engineAlerts: {Retries: alertRetries, Backoff: []string{"200ms", "500ms"}}}
	for _, s := range engineCast()[:2] {
		settings[s.Engine] = setting{
			Queue: s.Channel, Operations: operationsOf(s.Engine), Endpoint: endpoint + "/" + s.Engine + "/run",
			Retries: s.Retries, Backoff: []string{"200ms", "500ms"}, Registry: s.Engine == engineLocked,
		}
	}
	text, err := json.Marshal(settings)
	if err != nil {
		panic(err) // texts and numbers
	}
	return string(text)
}

// work is what an engine is to do once, however often it is asked to.
type work struct {
	Engine      string `json:"engine"`
	Correlation string `json:"correlation"`
	Instance    string `json:"instance"`
	Operation   string `json:"operation"`
}

func (w work) String() string {
	return fmt.Sprintf("%s of %s for %s by %s", w.Operation, w.Correlation, w.Instance, w.Engine)
}

// messageOf is the id of the message that a run on demand, or an alert, puts into the queue.
func (w work) message() string {
	if w.Engine == engineAlerts {
		return w.Correlation
	}
	return w.Correlation + "/" + w.Operation + "/" + w.Instance
}

// input is what a message asks for beside its work.
type input struct {
	Doomed bool   `json:"doomed"` // it fails until the end of the run
	Pad    string `json:"pad"`
}

// engineMessage is the body of a message in a queue, and of a run on demand.
type engineMessage struct {
	CorrelationID string `json:"correlationId"`
	InstanceID    string `json:"instanceId"`
	Operation     string `json:"operation"`
	Input         input  `json:"input"`
}

func (w work) body(doomed bool) string {
	text, err := json.Marshal(engineMessage{w.Correlation, w.Instance, w.Operation, input{doomed, padding}})
	if err != nil {
		panic(err) // texts
	}
	return string(text)
}

// engineRun is a run as the endpoint saw it. The endpoint does what a run asks for once, from the first POST on, whoever
// waits for it, and answers a repeated POST as it answered the first.
type engineRun struct {
	Work  work         `json:"work"`
	Run   string       `json:"run"` // the runId
	Fate  string       `json:"fate"`
	Begin moment       `json:"begin"`           // of its first POST
	Final moment       `json:"final,omitempty"` // when the endpoint had done it, or had failed; 0: it never came to that
	Done  bool         `json:"done,omitempty"`  // it was done
	Posts []enginePost `json:"posts"`
	Polls []moment     `json:"polls,omitempty"`
}

// enginePost is one request of a run.
type enginePost struct {
	At   moment `json:"at"`
	Key  string `json:"key"` // Idempotency-Key
	Flaw string `json:"flaw,omitempty"`
}

// last is the latest time at which the run is known to have been alive. It was so before its first POST and may have been
// after this: what is seen of a run is never more than its life.
func (r *engineRun) last() moment {
	if r.Final != 0 {
		return r.Final
	}
	at := r.Begin
	if len(r.Polls) > 0 {
		at = max(at, slices.Max(r.Polls))
	}
	return at
}

// engineJob is a job of an engine at rest.
type engineJob struct {
	Job      string `json:"job"`
	Message  string `json:"message"`
	Consumer string `json:"consumer"`
	Status   int    `json:"status"`
	Pending  int    `json:"pending,omitempty"` // its dead letters that are Pending
}

// workDone is the history of one work then.
type workDone struct {
	Work      work `json:"work"`
	Succeeded int  `json:"succeeded,omitempty"`
	Failed    int  `json:"failed,omitempty"`
}
