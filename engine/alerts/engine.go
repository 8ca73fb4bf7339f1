package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
)

// Options configures the engine.
type Options struct {
	// Channels get every alert, as Alert's JSON. Without any, alerts are in the history alone.
	Channels []string
	// Forward puts a message into a channel. A message id that the channel has had is no error; a channel that is not
	// there is one. Required with Channels.
	Forward func(ctx context.Context, channel, messageID string, body []byte) error
	// MaxRetryAttempts is how often a run that failed is tried again before its message is dead; default 5, negative: never.
	MaxRetryAttempts int
	// Retry is for each channel within a run; default 3 attempts, the second after 1 s.
	Retry durable.Retry
}

const (
	stepChannels = "channels"
	stepForward  = "forward"
)

// New makes the engine. A run forwards its alert to each channel in turn, also after one that failed, and its output
// lists them; it fails where one did not get the alert, and whoever got it does not get it again.
func New(o Options) engine.Definition {
	if o.Retry.Attempts == 0 {
		o.Retry = durable.Retry{Attempts: 3, Wait: time.Second}
	}
	o.Channels = slices.Clone(o.Channels)
	return engine.Definition{
		Name:             Name,
		MaxRetryAttempts: o.MaxRetryAttempts,
		Run:              o.run,
		Steps: map[string]engine.Step{
			// A step, since another process, or this one after its restart, may be configured otherwise.
			stepChannels: func(context.Context, engine.Call) (any, error) { return o.Channels, nil },
			stepForward:  o.forward,
		},
	}
}

// output is what the history says of a run.
type output struct {
	Forwarded []string `json:"forwarded"` // the channels
}

// forwarding is the input of a step.
type forwarding struct {
	Channel   string          `json:"channel"`
	MessageID string          `json:"messageId"`
	Body      json.RawMessage `json:"body"`
}

func (o Options) run(r *engine.Run) (any, error) {
	var a Alert
	err := json.Unmarshal(r.Input, &a)
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return nil, engine.Fatal(fmt.Errorf("the message's input is no alert: %w", err))
	}
	var channels []string
	if err := r.Do(stepChannels, nil, &channels); err != nil {
		return nil, err
	}
	out := output{Forwarded: []string{}}
	var failed []error
	for _, channel := range channels {
		err := r.Try(stepForward, forwarding{channel, a.ID(), r.Input}, nil, o.Retry)
		switch {
		case errors.Is(err, durable.ErrCanceled):
			return nil, err
		case err != nil:
			failed = append(failed, fmt.Errorf("channel %q: %w", channel, err))
		default:
			out.Forwarded = append(out.Forwarded, channel)
		}
	}
	return out, errors.Join(failed...)
}

func (o Options) forward(ctx context.Context, call engine.Call) (any, error) {
	var in forwarding
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	if o.Forward == nil {
		return nil, errors.New("nothing forwards alerts here")
	}
	return nil, o.Forward(ctx, in.Channel, in.MessageID, in.Body)
}
