package storage

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"
)

// Producer may broadcast messages.
type Producer struct {
	Key       uint32 // the database's id, never on the wire
	ID, Name  string
	ChangedAt time.Time // whole seconds, UTC; another value after every change
	token     tokenHash
}

// TokenMatches compares in constant time.
func (p *Producer) TokenMatches(token string) bool { return p.token.matches(token) }

// Channel is what messages are broadcast to.
type Channel struct {
	Key       uint32 // the database's id, never on the wire
	ID, Name  string
	ChangedAt time.Time // as of Producer
	History   HistoryPolicy
	token     tokenHash
}

// TokenMatches compares in constant time.
func (c *Channel) TokenMatches(token string) bool { return c.token.matches(token) }

// Consumer gets a job for each message of its channel.
type Consumer struct {
	Key         uint32 // the database's id, never on the wire
	ChannelKey  uint32
	ChannelID   string // of its channel, in a catalog
	ID, Name    string
	Type        ConsumerType
	CallbackURL string    // empty of an engine
	Token       string    // sent out with every push; a secret; empty where Sealed
	ChangedAt   time.Time // as of Producer
	// Sealed: none of this instance's keys opens its token. Nobody can prove to be it here, nothing can be pushed to
	// it from here, and what needs neither goes on.
	Sealed bool
}

// Engine is the engine whose dead letters and history its jobs are in: its own id where it is an engine.
func (c *Consumer) Engine() string {
	if c.Type == TypeEngine {
		return c.ID
	}
	return EngineDelivery
}

// TokenMatches compares in constant time. No token matches that of a consumer that is Sealed.
func (c *Consumer) TokenMatches(token string) bool {
	if c.Sealed {
		return false
	}
	want, got := sha256.Sum256([]byte(c.Token)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// Catalog is all producers, channels and consumers as they were at one version. It never changes.
type Catalog struct {
	version       uint64
	producers     []*Producer
	channels      []*Channel
	producerByID  map[string]*Producer
	producerByKey map[uint32]*Producer
	channelByID   map[string]*Channel
	channelByKey  map[uint32]*Channel
	consumerByKey map[uint32]*Consumer
	consumerByID  map[consumerRef]*Consumer
	consumersOf   map[uint32][]*Consumer
}

type consumerRef struct {
	channelKey uint32
	id         string
}

type atomicCatalog = atomic.Pointer[Catalog]

// Producer finds a producer by the id that its client chose.
func (c *Catalog) Producer(id string) (*Producer, bool) { p, ok := c.producerByID[id]; return p, ok }

// ProducerByKey finds a producer by the database's id.
func (c *Catalog) ProducerByKey(key uint32) (*Producer, bool) {
	p, ok := c.producerByKey[key]
	return p, ok
}

// Channel finds a channel by the id that its client chose.
func (c *Catalog) Channel(id string) (*Channel, bool) { ch, ok := c.channelByID[id]; return ch, ok }

// ChannelByKey finds a channel by the database's id.
func (c *Catalog) ChannelByKey(key uint32) (*Channel, bool) {
	ch, ok := c.channelByKey[key]
	return ch, ok
}

// Consumer finds a consumer of a channel by the id that its client chose.
func (c *Catalog) Consumer(ch *Channel, id string) (*Consumer, bool) {
	k, ok := c.consumerByID[consumerRef{ch.Key, id}]
	return k, ok
}

// ConsumerByKey finds a consumer by the database's id.
func (c *Catalog) ConsumerByKey(key uint32) (*Consumer, bool) {
	k, ok := c.consumerByKey[key]
	return k, ok
}

// ConsumersOf lists a channel's consumers, the oldest first.
func (c *Catalog) ConsumersOf(ch *Channel) []*Consumer { return c.consumersOf[ch.Key] }

// Consumers calls yield for every consumer, in no order, until it returns false.
func (c *Catalog) Consumers(yield func(*Consumer) bool) {
	for _, k := range c.consumerByKey {
		if !yield(k) {
			return
		}
	}
}

// Producers lists all producers, the oldest first.
func (c *Catalog) Producers() []*Producer { return c.producers }

// Channels lists all channels, the oldest first.
func (c *Catalog) Channels() []*Channel { return c.channels }

// Version rises with every change of what the catalog holds.
func (c *Catalog) Version() uint64 { return c.version }

// Catalog returns what the database holds at the moment of the call: one read by primary key, and a reload where
// somebody changed something since. A change whose PUT was answered before the call is in it, on every instance.
func (s *Store) Catalog(ctx context.Context) (*Catalog, error) {
	version, err := s.catalogVersion(ctx)
	if err != nil {
		return nil, err
	}
	// Not >=: after a failover that lost the last change, the same number may come again with another one.
	if cat := s.catalog.Load(); cat != nil && cat.version == version {
		return cat, nil
	}
	s.catalogMu.Lock()
	defer s.catalogMu.Unlock()
	if cat := s.catalog.Load(); cat != nil && cat.version == version {
		return cat, nil // another goroutine reloaded it meanwhile
	}
	cat, err := s.loadCatalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("load catalog: %w", err)
	}
	s.catalog.Store(cat)
	return cat, nil
}

// LastCatalog returns the catalog as this process last saw it, without asking the database: for what is checked again
// later, or looked at often. Before the first load it is Catalog.
func (s *Store) LastCatalog(ctx context.Context) (*Catalog, error) {
	if cat := s.catalog.Load(); cat != nil {
		return cat, nil
	}
	return s.Catalog(ctx)
}

func (s *Store) catalogVersion(ctx context.Context) (version uint64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT version FROM catalog WHERE id = 1`).Scan(&version)
	return version, err
}

// loadCatalog reads the version before the rows: where a change comes between, the rows are newer than the version
// says, and the next call reloads them.
func (s *Store) loadCatalog(ctx context.Context) (*Catalog, error) {
	version, err := s.catalogVersion(ctx)
	if err != nil {
		return nil, err
	}
	seals, err := s.sealer(ctx)
	if err != nil {
		return nil, err
	}
	cat := &Catalog{
		version:      version,
		producerByID: map[string]*Producer{}, producerByKey: map[uint32]*Producer{},
		channelByID: map[string]*Channel{}, channelByKey: map[uint32]*Channel{},
		consumerByKey: map[uint32]*Consumer{}, consumerByID: map[consumerRef]*Consumer{}, consumersOf: map[uint32][]*Consumer{},
	}
	if err := cat.loadStakeholders(ctx, s.db); err != nil {
		return nil, err
	}
	return cat, cat.loadConsumers(ctx, s.db, seals, func(k *Consumer, err error) {
		if before := s.catalog.Load(); before != nil {
			if known, ok := before.consumerByKey[k.Key]; ok && known.Sealed && known.ChangedAt.Equal(k.ChangedAt) {
				return // said before
			}
		}
		s.log.ErrorContext(ctx, "a consumer is left out by this instance: its token cannot be opened", "channel", k.ChannelID, "consumer", k.ID, "error", err)
	})
}

func (c *Catalog) loadStakeholders(ctx context.Context, q querier) (err error) {
	c.producers, err = collect(ctx, q, func(rows *sql.Rows) (*Producer, error) {
		var p Producer
		return &p, rows.Scan(&p.Key, &p.ID, &p.Name, &p.token, &p.ChangedAt)
	}, `SELECT id, producerId, name, tokenHash, changedAt FROM producer ORDER BY id`)
	if err != nil {
		return err
	}
	for _, p := range c.producers {
		c.producerByID[p.ID], c.producerByKey[p.Key] = p, p
	}
	c.channels, err = collect(ctx, q, func(rows *sql.Rows) (*Channel, error) {
		var ch Channel
		return &ch, rows.Scan(&ch.Key, &ch.ID, &ch.Name, &ch.token, &ch.ChangedAt, &ch.History)
	}, `SELECT id, channelId, name, tokenHash, changedAt, history FROM channel ORDER BY id`)
	for _, ch := range c.channels {
		c.channelByID[ch.ID], c.channelByKey[ch.Key] = ch, ch
	}
	return err
}

// loadConsumers tells report of each consumer whose token cannot be opened: the others must not suffer from it.
func (c *Catalog) loadConsumers(ctx context.Context, q querier, seals *sealer, report func(*Consumer, error)) error {
	unopened := map[*Consumer]error{}
	consumers, err := collect(ctx, q, func(rows *sql.Rows) (*Consumer, error) {
		var k Consumer
		var sealed []byte
		if err := rows.Scan(&k.Key, &k.ChannelKey, &k.ID, &k.Name, &k.Type, &k.CallbackURL, &sealed, &k.ChangedAt); err != nil {
			return nil, err
		}
		token, err := seals.open(sealed)
		if k.Token = token; err != nil {
			k.Sealed, unopened[&k] = true, err
		}
		return &k, nil
	}, `SELECT id, channelId, consumerId, name, type, callbackUrl, tokenSealed, changedAt FROM consumer ORDER BY id`)
	for _, k := range consumers {
		if ch, ok := c.channelByKey[k.ChannelKey]; ok {
			k.ChannelID = ch.ID
		}
		if err := unopened[k]; err != nil && k.Type != TypeEngine { // nobody needs an engine's
			report(k, err)
		}
		c.consumerByKey[k.Key] = k
		c.consumerByID[consumerRef{k.ChannelKey, k.ID}] = k
		c.consumersOf[k.ChannelKey] = append(c.consumersOf[k.ChannelKey], k)
	}
	return err
}
