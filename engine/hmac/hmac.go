package hmac

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/storage"
)

// Name is the engine's, in a context.
const Name = "hmac"

// The operations of RFC-72. A run rotates; telling of it is a part of it.
const (
	OperationRotate = "rotate"
	OperationNotify = "notify"
)

// EventRotated is the type of a notification.
const EventRotated = "signing-secret.rotated"

const (
	stepSpread = "spread"
	stepRotate = "rotate"
	stepNotify = "notify"
	stepRetire = "retire"

	day          = 24 * time.Hour
	retireBatch  = 1000 // secrets in a transaction
	maxInstances = 255  // characters of an instance id
)

// Store is what the engine works on: storage.Store.
type Store interface {
	RotateSigningSecret(ctx context.Context, subject storage.SigningSubject, key string, overlap time.Duration) (storage.Rotation, error)
	RetireSigningSecrets(ctx context.Context, limit int) (retired int64, more bool, err error)
	SigningSubjects(ctx context.Context) ([]storage.SigningSubject, error)
}

// Queue takes the messages of the subjects whose secret is due: engine.Runtime.
type Queue interface {
	Put(ctx context.Context, engine, id string, m engine.Message) (created bool, err error)
}

// Options configures the engine. Zero values mean the default that is named.
type Options struct {
	Store Store // required
	Queue Queue // required
	// Instance is the context's own instance id, which stands for all subjects that are due; default engine.PublisherInstance.
	Instance string
	// MaxAge is how old a secret is when it is due; default 90 days.
	MaxAge time.Duration
	// Overlap is how long the former secret stays valid; default 24 h, at most 366 days.
	Overlap time.Duration
	// Every is how often it is looked which secrets are due; default 0: only on demand.
	Every time.Duration
	// NotifyChannel is the id of the channel that is told of each rotation; empty: none.
	NotifyChannel string
	// Forward puts a JSON message into a channel. A message id that the channel has had is no error; a channel that is not
	// there is one. Required with NotifyChannel.
	Forward func(ctx context.Context, channel, messageID string, body []byte) error
}

type rotation struct{ o Options }

// New makes the engine, for Runtime.Register, which refuses it where something required is missing.
func New(o Options) engine.Definition {
	d := engine.Defaults(Name)
	d.Every = o.Every
	if o.Store == nil || o.Queue == nil || o.NotifyChannel != "" && o.Forward == nil {
		return d
	}
	if o.Instance == "" {
		o.Instance = engine.PublisherInstance
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 90 * day
	}
	if o.Overlap <= 0 {
		o.Overlap = day
	}
	h := &rotation{o}
	d.Run = h.run
	d.Steps = map[string]engine.Step{stepSpread: h.spread, stepRotate: h.rotate, stepNotify: h.notify, stepRetire: h.retire}
	return d
}

// retry is for what passes soon; the queue's retries are for the rest.
var retry = durable.Retry{Attempts: 3, Wait: time.Second}

// input is what a run may be told. Both members may be missing.
type input struct {
	// Subject, where the instance id is not it: one that is longer than an instance id can be.
	Subject string `json:"subject,omitempty"`
	// SecretCreatedAt is the age of the secret to replace. Any number of messages with the same one rotate once.
	SecretCreatedAt *time.Time `json:"secretCreatedAt,omitempty"`
}

// spreadOutput is the output of a run of the context's own instance.
type spreadOutput struct {
	Subjects int `json:"subjects"` // that have a secret
	Due      int `json:"due"`      // and got a message
}

func (h *rotation) run(r *engine.Run) (any, error) {
	if r.Operation == OperationNotify {
		return nil, engine.Fatal(errors.New("notify is a part of rotate and no operation of its own; rotate again under the same correlation id"))
	}
	var in input
	if err := json.Unmarshal(r.Input, &in); err != nil {
		return nil, engine.Fatal(fmt.Errorf("the input of a rotation: %w", err))
	}
	if in.Subject == "" {
		in.Subject = r.InstanceID
	}
	if in.Subject == h.o.Instance {
		var out spreadOutput
		if err := r.Try(stepSpread, spreadInput{r.CorrelationID, r.Now()}, &out, retry); err != nil {
			return nil, err
		}
		return out, r.Try(stepRetire, nil, nil, retry)
	}
	subject, err := storage.ParseSigningSubject(in.Subject)
	if err != nil {
		return nil, engine.Fatal(err)
	}
	var done rotated
	if err := r.Try(stepRotate, rotateInput{subject.String(), rotationKey(in, r.CorrelationID)}, &done, retry); err != nil {
		return nil, err
	}
	if !done.Found {
		if in.SecretCreatedAt != nil {
			return done, nil // deleted since its message was put
		}
		return nil, engine.Fatal(fmt.Errorf("there is no %s", subject))
	}
	if done.Notify != "" {
		if err := r.Record(OperationNotify, stepNotify, done, nil, retry); err != nil {
			return nil, err
		}
	}
	return done, r.Try(stepRetire, nil, nil, retry)
}

// rotationKey is the same in every run for the same work: a run that failed after it rotated must not rotate again.
func rotationKey(in input, correlationID string) string {
	if in.SecretCreatedAt != nil {
		return "age/" + in.SecretCreatedAt.UTC().Format(time.RFC3339Nano)
	}
	sum := sha256.Sum256([]byte(correlationID))
	return "run/" + hex.EncodeToString(sum[:])
}

type spreadInput struct {
	CorrelationID string    `json:"correlationId"`
	Now           time.Time `json:"now"`
}

// spread puts a message for each subject whose secret is due.
func (h *rotation) spread(ctx context.Context, call engine.Call) (any, error) {
	var in spreadInput
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	subjects, err := h.o.Store.SigningSubjects(ctx)
	if err != nil {
		return nil, err
	}
	out := spreadOutput{Subjects: len(subjects)}
	for _, s := range subjects {
		if in.Now.Sub(s.CreatedAt) < h.o.MaxAge {
			continue
		}
		text, createdAt := s.String(), s.CreatedAt.UTC()
		told, err := json.Marshal(input{text, &createdAt})
		if err != nil {
			return nil, durable.Permanent(err)
		}
		m := engine.Message{CorrelationID: in.CorrelationID, InstanceID: instanceOf(text), Operation: OperationRotate, Input: told}
		if _, err := h.o.Queue.Put(ctx, Name, in.CorrelationID+"/"+text, m); err != nil {
			return nil, fmt.Errorf("put the message of %s: %w", text, err)
		}
		out.Due++
	}
	return out, nil
}

// instanceOf is a subject as an instance id.
func instanceOf(subject string) string {
	if utf8.RuneCountInString(subject) <= maxInstances {
		return subject
	}
	sum := sha256.Sum256([]byte(subject))
	return "subject:" + hex.EncodeToString(sum[:])
}

type rotateInput struct {
	Subject string `json:"subject"`
	Key     string `json:"key"`
}

// rotated is what a rotation made, and the output of its run. It has no secret.
type rotated struct {
	Found     bool       `json:"found"` // false: there is no such subject
	Subject   string     `json:"subject"`
	SecretID  string     `json:"secretId,omitempty"`
	CreatedAt time.Time  `json:"createdAt,omitzero"`
	RetiresAt *time.Time `json:"retiresAt,omitempty"` // of the former secret; nil: there was none
	// Notify is the channel to tell. The process that goes on with the run may be configured otherwise than the one that began it.
	Notify string `json:"notify,omitempty"`
}

func (h *rotation) rotate(ctx context.Context, call engine.Call) (any, error) {
	var in rotateInput
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return nil, durable.Permanent(err)
	}
	subject, err := storage.ParseSigningSubject(in.Subject)
	if err != nil {
		return nil, durable.Permanent(err)
	}
	made, err := h.o.Store.RotateSigningSecret(ctx, subject, in.Key, h.o.Overlap)
	if errors.Is(err, storage.ErrNotFound) {
		return rotated{Subject: in.Subject}, nil
	}
	if err != nil {
		return nil, err
	}
	out := rotated{Found: true, Subject: in.Subject, SecretID: made.ID.String(), CreatedAt: made.CreatedAt.UTC(), Notify: h.o.NotifyChannel}
	if !made.FormerUntil.IsZero() {
		until := made.FormerUntil.UTC()
		out.RetiresAt = &until
	}
	return out, nil
}

// event is what a notification says.
type event struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the rotation
	Data      eventData `json:"data"`
}

type eventData struct {
	Subject    string     `json:"subject"`
	ChannelID  string     `json:"channelId,omitempty"`
	ConsumerID string     `json:"consumerId,omitempty"`
	ProducerID string     `json:"producerId,omitempty"`
	SecretID   string     `json:"secretId"`
	RetiresAt  *time.Time `json:"retiresAt,omitempty"` // of the former secret
}

// notify tells the channel. The message's id is made of the secret's, so that it is there once.
func (h *rotation) notify(ctx context.Context, call engine.Call) (any, error) {
	var of rotated
	if err := json.Unmarshal(call.Input, &of); err != nil {
		return nil, durable.Permanent(err)
	}
	subject, err := storage.ParseSigningSubject(of.Subject)
	if err != nil {
		return nil, durable.Permanent(err)
	}
	e := event{EventRotated, of.CreatedAt, eventData{Subject: of.Subject, SecretID: of.SecretID, RetiresAt: of.RetiresAt}}
	if subject.Kind == storage.SigningConsumer {
		e.Data.ChannelID, e.Data.ConsumerID = subject.ChannelID, subject.ID
	} else {
		e.Data.ProducerID = subject.ID
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, durable.Permanent(err)
	}
	id := "signing-secret-rotated-" + of.SecretID
	if h.o.Forward == nil {
		return nil, errors.New("this process is configured to tell nobody")
	}
	if err := h.o.Forward(ctx, of.Notify, id, body); err != nil {
		return nil, fmt.Errorf("tell %q of the rotation: %w", of.Notify, err)
	}
	return map[string]string{"channelId": of.Notify, "messageId": id}, nil
}

// retire deletes secrets whose time has passed, everybody's: they are not valid any more.
func (h *rotation) retire(ctx context.Context, _ engine.Call) (any, error) {
	for more := true; more; {
		var err error
		if _, more, err = h.o.Store.RetireSigningSecrets(ctx, retireBatch); err != nil {
			return nil, err
		}
	}
	return nil, nil
}
