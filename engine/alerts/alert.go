// Package alerts is the engine alerts of RFC-72: it reads the webhooks of Prometheus Alertmanager and of Azure Monitor
// (common alert schema), makes one message of each alert, and forwards every firing and every resolving once to the
// configured channels, however often it is sent.
//
//	runtime.Register(alerts.New(alerts.Options{Channels: []string{"ops"}, Forward: ...}))
//	in := alerts.Intake{Put: ...}              // into the engine's queue
//	queued, repeated, err := in.Take(ctx, body) // of a webhook
//
// What tells repetitions is ID: the alert's fingerprint, its status, and when it began to fire. Alertmanager's reminders
// (repeat_interval) and a resolving that comes with another end are repetitions therefore; an alert that fires again has
// another start. The messages of one alert are worked on one at a time, those of different alerts side by side. A firing
// whose forwarding has to be tried again may be overtaken by its resolving: what is forwarded says which it is.
package alerts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/redrive-mq/redrive/engine"
)

// Name is the engine's, in every context, and Operation its only operation.
const (
	Name      = "alerts"
	Operation = "process"
)

// Source is who sent an alert.
type Source string

// The senders that are understood.
const (
	Alertmanager Source = "alertmanager"
	AzureMonitor Source = "azure-monitor"
)

// Status is what an alert says.
type Status string

// The two things that an alert can say.
const (
	Firing   Status = "firing"
	Resolved Status = "resolved"
)

// Alert is one alert, whoever sent it. Its JSON is what is forwarded.
type Alert struct {
	Source Source `json:"source"`
	// Fingerprint tells alerts apart: the sender's, or one made of what identifies the alert. 1 to 200 visible ASCII
	// characters.
	Fingerprint string `json:"fingerprint"`
	Status      Status `json:"status"`

	Name        string            `json:"name,omitempty"`     // Alertmanager: the label alertname; Azure: the rule
	Severity    string            `json:"severity,omitempty"` // as the sender puts it: "critical", "Sev1"
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`      // of Azure: what its essentials say of the rule and its targets
	Annotations map[string]string `json:"annotations,omitempty"` // Alertmanager's

	StartsAt     time.Time `json:"startsAt,omitzero"`      // UTC; of Azure it may be missing
	EndsAt       time.Time `json:"endsAt,omitzero"`        // UTC; of resolved ones
	GeneratorURL string    `json:"generatorURL,omitempty"` // where a person looks next

	// Raw is the alert as it came: an entry of Alertmanager's alerts, Azure's data. It is left out where the alert
	// would have more than MaxBytes with it.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// MaxBytes is the most that an alert may have, as JSON.
const MaxBytes = 512 << 10

// fingerprintPattern leaves room in an id of 255 characters for status and time.
var fingerprintPattern = regexp.MustCompile(`^[!-~]{1,200}$`)

// fingerprint is what the sender gave, where it can be an id as it is, or a digest of what identifies the alert.
func fingerprint(given string, identity ...any) (string, error) {
	if fingerprintPattern.MatchString(given) {
		return given, nil
	}
	if given != "" {
		identity = []any{given}
	}
	text, err := json.Marshal(identity) // the keys of maps sorted
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// ID is the same for all repetitions of a firing, and for all of a resolving, and of no other: at most 241 visible ASCII
// characters.
func (a Alert) ID() string {
	id := a.Fingerprint + "/" + string(a.Status)
	if !a.StartsAt.IsZero() {
		id += "/" + a.StartsAt.UTC().Format(time.RFC3339Nano)
	}
	return id
}

// Message is what the engine's queue gets of an alert, under the message id ID. The error is of an alert that Parse
// does not make.
func Message(a Alert) (engine.Message, error) {
	if err := a.check(); err != nil {
		return engine.Message{}, err
	}
	input, err := json.Marshal(a)
	return engine.Message{CorrelationID: a.ID(), InstanceID: a.Fingerprint, Operation: Operation, Input: input}, err
}

// check says what keeps an alert from being processed.
func (a Alert) check() error {
	switch {
	case !fingerprintPattern.MatchString(a.Fingerprint):
		return fmt.Errorf("fingerprint: %.64q must be 1 to 200 visible ASCII characters", a.Fingerprint)
	case a.Status != Firing && a.Status != Resolved:
		return fmt.Errorf("status: %.64q is neither %s nor %s", a.Status, Firing, Resolved)
	}
	return nil
}
