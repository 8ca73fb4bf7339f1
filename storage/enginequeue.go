package storage

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// engineName is what PartitionKey can hold.
var engineName = regexp.MustCompile(`^[!-~]{1,64}$`)

// ErrEngineNameTaken says that the channel which is to be an engine's queue has a consumer of the engine's name that is none.
var ErrEngineNameTaken = errors.New("another consumer has the engine's name")

// PutEngineQueue makes an engine's queue where it is missing: the channel of that id, which is also its name, and its
// consumer of TypeEngine, whose id and name are the engine's. Nobody knows their tokens. What is there stays as it is, and
// several instances may do this at once. An engine's name is 1 to 64 printable ASCII characters without spaces. ErrReservedEngine;
// ErrEngineNameTaken.
func (s *Store) PutEngineQueue(ctx context.Context, engine, queue string) (*Consumer, error) {
	switch {
	case engine == EngineDelivery:
		return nil, ErrReservedEngine
	case !engineName.MatchString(engine):
		return nil, fmt.Errorf("the engine %q: a name is 1 to 64 printable ASCII characters without spaces", engine)
	case queue == "":
		return nil, fmt.Errorf("the engine %q has no queue", engine)
	}
	seals, err := s.sealer(ctx)
	if err != nil {
		return nil, err
	}
	var out *Consumer
	err = s.changeIf(ctx, func(tx *sql.Tx) (changed bool, err error) {
		out = &Consumer{ChannelID: queue, ID: engine, Name: engine, Type: TypeEngine}
		madeQueue, err := putQueue(ctx, tx, out)
		if err != nil {
			return false, err
		}
		madeConsumer, err := putEngine(ctx, tx, out, seals)
		return madeQueue || madeConsumer, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// putQueue finds or makes the channel and sets ChannelKey.
func putQueue(ctx context.Context, tx *sql.Tx, k *Consumer) (made bool, err error) {
	err = tx.QueryRowContext(ctx, `SELECT id FROM channel WHERE channelId = ?`, k.ChannelID).Scan(&k.ChannelKey)
	if !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	k.ChannelKey, err = insertKeyed(ctx, tx, `INSERT INTO channel (channelId, name, tokenHash, changedAt, createdAt)
		VALUES (?, ?, ?, NOW(), NOW(6))`, k.ChannelID, k.ChannelID, []byte(hashToken(NewToken())))
	return true, err
}

// putEngine finds or makes the consumer and sets Key and ChangedAt.
func putEngine(ctx context.Context, tx *sql.Tx, k *Consumer, seals *sealer) (made bool, err error) {
	var kind ConsumerType
	find := func() error {
		return tx.QueryRowContext(ctx, `SELECT id, name, type, changedAt FROM consumer WHERE channelId = ? AND consumerId = ?`, k.ChannelKey, k.ID).
			Scan(&k.Key, &k.Name, &kind, &k.ChangedAt)
	}
	err = find()
	switch {
	case err == nil && kind != TypeEngine:
		return false, fmt.Errorf("%w: a %s consumer %q of the channel %q", ErrEngineNameTaken, kind, k.ID, k.ChannelID)
	case !errors.Is(err, sql.ErrNoRows):
		return false, err
	}
	k.Key, err = insertKeyed(ctx, tx, `INSERT INTO consumer (channelId, consumerId, name, type, callbackUrl, tokenSealed, changedAt, createdAt)
		VALUES (?, ?, ?, ?, '', ?, NOW(), NOW(6))`,
		k.ChannelKey, k.ID, k.Name, string(TypeEngine), seals.seal(NewToken()))
	if err != nil {
		return false, err
	}
	if err := find(); err != nil {
		return false, err
	}
	return true, summarize(ctx, tx, k)
}

func insertKeyed(ctx context.Context, tx *sql.Tx, query string, args ...any) (key uint32, err error) {
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	id, err := res.LastInsertId()
	return uint32(id), err
}

// Enqueued is a message for a queue that no producer sent.
type Enqueued struct {
	Queue     string          // a channel's id
	MessageID string          // unique in the channel, at most 255 characters; empty: one is made
	Body      json.RawMessage // nil: null
}

// Enqueue stores a message, with a QUEUED job for each consumer of its queue, and returns its key and the jobs, so that the
// lanes of their consumers can be woken. ErrDuplicate where the message id is taken: nothing is stored then. ErrNoQueue;
// an error where the body is not JSON.
func (s *Store) Enqueue(ctx context.Context, e Enqueued) (key ID, jobs []NewJob, err error) {
	if e.Body != nil && !json.Valid(e.Body) {
		return ID{}, nil, errors.New("the body of a message for an engine is not JSON")
	}
	cat, err := s.Catalog(ctx)
	if err != nil {
		return ID{}, nil, err
	}
	m, err := jsonMessage(cat, e.Queue, e.MessageID, e.Body)
	if err != nil {
		return ID{}, nil, err
	}
	if err := s.inTx(ctx, func(tx *sql.Tx) error { return storeMessage(ctx, tx, m) }); err != nil {
		return ID{}, nil, err
	}
	return m.Key, m.Jobs, nil
}

// jsonMessage is a message without a producer for the channel of that id, and its jobs. ErrNoQueue.
func jsonMessage(cat *Catalog, queue, messageID string, body json.RawMessage) (*NewMessage, error) {
	channel, ok := cat.Channel(queue)
	if !ok {
		return nil, ErrNoQueue
	}
	key := NewID()
	if messageID == "" {
		messageID = key.String()
	}
	if body == nil {
		body = json.RawMessage(`null`)
	}
	m := &NewMessage{Key: key, ChannelKey: channel.Key, MessageID: messageID, ContentType: "application/json", Body: body}
	for _, k := range cat.ConsumersOf(channel) {
		m.Jobs = append(m.Jobs, NewJob{ID: NewID(), ConsumerKey: k.Key})
	}
	return m, nil
}

// storeMessage stores it and its jobs; ErrDuplicate.
func storeMessage(ctx context.Context, tx *sql.Tx, m *NewMessage) error {
	msgs := []*NewMessage{m}
	if err := insertMessages(ctx, tx, msgs); err != nil {
		return err
	}
	if m.Duplicate {
		return ErrDuplicate
	}
	if err := insertPayloads(ctx, tx, msgs); err != nil {
		return err
	}
	return insertJobs(ctx, tx, m.Key[len(m.Key)-1], Lease{}, msgs)
}
