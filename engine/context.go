package engine

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/storage"
)

// The deployment contexts of RFC-72.
const (
	Publisher  = "publisher"
	ManagedApp = "managed-app"
)

// PublisherInstance is the instance id of operations that concern the publisher as a whole and no single instance.
const PublisherInstance = "publisher"

// OperationDeliver is what the delivery engine records: one attempt at a destination.
const OperationDeliver = "deliver"

// What the history of any engine shows besides: its operators' actions on dead letters.
const (
	OperationRequeue = "requeue" // one dead letter retried, or all dead jobs of a consumer
	OperationPurge   = "purge"
	OperationResolve = "resolve"
	OperationExpire  = "expire"
)

// Engine is one engine of a context.
type Engine struct {
	// Queue is where its messages come from. Empty: it has no queue of its own ("N/A" in RFC-72), as the delivery
	// engine, whose queues are the channels.
	Queue string `json:"queue" yaml:"queue"`
	// Operations are what it records in the history; at least one.
	Operations []string `json:"operations" yaml:"operations"`
}

// Context is a deployment: its name and its engines by name. It is a value that nobody changes; With makes another.
type Context struct {
	Name    string
	Engines map[string]Engine
}

// Lookup finds the context of a name. The error of another name lists those that there are.
func Lookup(name string) (Context, error) {
	c := Context{Name: name}
	switch name {
	case Publisher:
		c.Engines = map[string]Engine{
			"provisioning":     {"webhook-queue", []string{"webhook-received", "instance-registered", "bootstrap-complete"}},
			"hmac":             {"hmac-rotation-queue", []string{"rotate", "notify"}},
			"tls":              {"tls-rotation-queue", []string{"renew", "distribute"}},
			"spn":              {"spn-rotation-queue", []string{"rotate"}},
			"update-publisher": {"", []string{"evaluate", "notify"}},
			"alerts":           {"monitor-alerts-queue", []string{"process"}},
		}
	case ManagedApp:
		c.Engines = map[string]Engine{
			"update": {"update-notifications-queue", []string{"process", "component-update"}},
			"health": {"health-notifications-queue", []string{"check", "aggregate"}},
			"alerts": {"monitor-alerts-queue", []string{"process"}},
		}
	default:
		return Context{}, fmt.Errorf("engine: there is no context %q, only %s and %s", name, ManagedApp, Publisher)
	}
	c.Engines[storage.EngineDelivery] = Engine{"", []string{OperationDeliver}}
	return c, nil
}

// wordPattern is what names of engines and operations look like: they go into paths, queries and logs as they are.
var wordPattern = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

const (
	maxEngine    = 64  // characters
	maxOperation = 64  // characters
	maxQueue     = 255 // characters, as a channel's id
)

// With is the context with further engines, or with other queues and operations for engines that it has. The error
// joins all that is wrong with them: names and operations are at most 64 characters of a-z, 0-9 and single dashes,
// queues at most 255 printable ones of one engine each, and the delivery engine is the broker's own.
func (c Context) With(engines map[string]Engine) (Context, error) {
	out := Context{Name: c.Name, Engines: maps.Clone(c.Engines)}
	if out.Engines == nil {
		out.Engines = map[string]Engine{}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(engines)) {
		e := engines[name]
		if err := e.validate(name); err != nil {
			errs = append(errs, err)
			continue
		}
		e.Operations = slices.Clone(e.Operations)
		out.Engines[name] = e
	}
	of := map[string]string{}
	for _, name := range out.Names() {
		queue := out.Engines[name].Queue
		if other, taken := of[queue]; taken && queue != "" { // each message would be for both, and dead for one
			errs = append(errs, fmt.Errorf("engine %q: the queue %q is that of the engine %q", name, queue, other))
		}
		of[queue] = name
	}
	if len(errs) > 0 {
		return Context{}, errors.Join(errs...)
	}
	return out, nil
}

func (e Engine) validate(name string) error {
	const word = "at most 64 characters of a-z and 0-9, with single dashes between them"
	switch {
	case name == storage.EngineDelivery:
		return fmt.Errorf("engine %q: it is the broker's own and cannot be changed", name)
	case len(name) > maxEngine || !wordPattern.MatchString(name):
		return fmt.Errorf("engine %q: the name must be %s", name, word)
	case e.Queue != "" && !isPlain(e.Queue, maxQueue):
		return fmt.Errorf("engine %q: queue %q must be at most 255 printable characters, with no space at either end", name, e.Queue)
	case len(e.Operations) == 0:
		return fmt.Errorf("engine %q: operations must name at least one", name)
	}
	for i, op := range e.Operations {
		switch {
		case len(op) > maxOperation || !wordPattern.MatchString(op):
			return fmt.Errorf("engine %q: operation %q must be %s", name, op, word)
		case slices.Contains(operatorActions(), op):
			return fmt.Errorf("engine %q: operation %q is what operators do with dead letters; name it otherwise", name, op)
		case slices.Contains(e.Operations[:i], op):
			return fmt.Errorf("engine %q: operation %q is there twice", name, op)
		}
	}
	return nil
}

func operatorActions() []string {
	return []string{OperationRequeue, OperationPurge, OperationResolve, OperationExpire}
}

// String is the context's name.
func (c Context) String() string { return c.Name }

// Names lists the engines, sorted.
func (c Context) Names() []string { return slices.Sorted(maps.Keys(c.Engines)) }

// Operations lists what an engine records, in the order of RFC-72; nil where the context has no such engine.
func (c Context) Operations(engine string) []string {
	return slices.Clone(c.Engines[engine].Operations)
}

// Recorded lists all operations that the history of an engine may show: its own and what operators did with its dead
// letters; nil where the context has no such engine.
func (c Context) Recorded(engine string) []string {
	e, ok := c.Engines[engine]
	if !ok {
		return nil
	}
	return append(slices.Clone(e.Operations), operatorActions()...)
}

// isPlain tells whether text is something to print, at most so many characters long.
func isPlain(text string, most int) bool {
	n := 0
	for _, r := range text {
		if n++; n > most || !isPrintable(r) {
			return false
		}
	}
	return n > 0 && strings.TrimSpace(text) == text
}

// Instance is the instance id of what concerns the deployment as a whole.
func (c Context) Instance() string {
	if c.Name == Publisher {
		return PublisherInstance
	}
	return c.Name
}
