package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/engine/durable"
)

// Message is what a message in an engine's queue says. On the wire it is a JSON object; all of its members may be
// missing, and others are the engine's own.
type Message struct {
	// CorrelationID is made by whoever sends the message and tells repetitions of one piece of work from others; without
	// one it is the message's id. At most 255 printable characters.
	CorrelationID string `json:"correlationId"`
	// InstanceID is what the work is about, which at most one run at a time of an engine works on; without one it is
	// the context's name (PublisherInstance in a publisher). At most 255 printable characters.
	InstanceID string `json:"instanceId"`
	// Operation is one of the engine's; without one it is the first.
	Operation string `json:"operation"`
	// Input is any JSON value of at most 512 KiB, as encoding/json writes it; without the member it is the whole object.
	Input json.RawMessage `json:"input,omitempty"`
}

const (
	maxID = 255 // characters
	// A run writes its input and its output into the history in one call of the durable runtime: together, and with what else
	// the entry says, they fit.
	maxInput = durable.MaxPayload / 2 // bytes, encoded
)

// parseMessage reads the body of a message. What is left out comes from defaults.
func parseMessage(body []byte, defaults Message, operations []string) (Message, error) {
	m := defaults
	if trimmed := bytes.TrimSpace(body); len(trimmed) == 0 || trimmed[0] != '{' {
		return defaults, errors.New("the message is not a JSON object")
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return defaults, fmt.Errorf("the message is not what an engine reads: %w", err)
	}
	if m.Input == nil {
		m.Input = bytes.Clone(body)
	}
	m = m.or(defaults)
	if err := m.check(operations); err != nil {
		return defaults, err
	}
	return m, nil
}

// or fills in what is left out.
func (m Message) or(defaults Message) Message {
	for _, f := range []struct{ value, other *string }{
		{&m.CorrelationID, &defaults.CorrelationID}, {&m.InstanceID, &defaults.InstanceID}, {&m.Operation, &defaults.Operation},
	} {
		if *f.value == "" {
			*f.value = *f.other
		}
	}
	return m
}

func (m Message) check(operations []string) error {
	for _, f := range []struct{ name, value string }{{"correlationId", m.CorrelationID}, {"instanceId", m.InstanceID}} {
		if !isPlain(f.value, maxID) {
			return fmt.Errorf("%s: must be 1 to %d printable characters, with no space at either end", f.name, maxID)
		}
	}
	if !slices.Contains(operations, m.Operation) {
		return fmt.Errorf("operation: %q is none of %s", m.Operation, strings.Join(operations, ", "))
	}
	input, err := json.Marshal(m.Input) // which escapes what the message may have had as it is
	if err != nil {
		return errors.New("input: it is not JSON")
	}
	if len(input) > maxInput {
		return fmt.Errorf("input: it has %d bytes: %d are the most", len(input), maxInput)
	}
	return nil
}
