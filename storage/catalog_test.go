package storage_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestCatalogShowsEveryChangeAtOnceOnEveryInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	other := w.another()
	version := must(other.Catalog(w.ctx)).Version()
	rises := func(what string) *storage.Catalog {
		t.Helper()
		cat := must(other.Catalog(w.ctx))
		if cat.Version() <= version {
			t.Errorf("%s: the version is still %d", what, version)
		}
		version = cat.Version()
		if again := must(other.Catalog(w.ctx)); again != cat {
			t.Errorf("%s: loaded again though nothing changed", what)
		}
		return cat
	}

	p := must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "till", Name: "Till", Token: "t1"}))
	got, ok := rises("producer made").Producer("till")
	if !ok || got.Name != "Till" || !got.ChangedAt.Equal(p.ChangedAt) || !got.TokenMatches("t1") || got.TokenMatches("t2") || got.TokenMatches("") {
		t.Errorf("producer %+v", got)
	}
	must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "till", Name: "New till", Token: "t2", IfUnmodifiedSince: &p.ChangedAt}))
	if got, _ := rises("producer changed").Producer("till"); got.Name != "New till" || got.Key != p.Key || !got.TokenMatches("t2") || got.TokenMatches("t1") {
		t.Errorf("changed producer %+v", got)
	}

	k := w.consumer("billing", storage.TypePull)
	cat := rises("consumer made")
	ch, ok := cat.Channel("orders")
	if !ok || !ch.TokenMatches("c-token") {
		t.Fatalf("channel %+v", ch)
	}
	gotK, ok := cat.Consumer(ch, "billing")
	if !ok || gotK.Key != k.Key || gotK.Type != storage.TypePull || gotK.CallbackURL != k.CallbackURL || gotK.Token != "k-token" || !gotK.TokenMatches("k-token") || gotK.TokenMatches("k-tokem") {
		t.Errorf("consumer %+v", gotK)
	}
	if of := cat.ConsumersOf(ch); len(of) != 1 || of[0] != gotK {
		t.Errorf("consumers of the channel: %v", of)
	}
	if byKey, ok := cat.ConsumerByKey(k.Key); !ok || byKey != gotK {
		t.Errorf("consumer by key %+v", byKey)
	}
	if c, ok := cat.ChannelByKey(ch.Key); !ok || c != ch || len(cat.Channels()) != 1 {
		t.Errorf("channel by key %+v", c)
	}
	if p, ok := cat.ProducerByKey(p.Key); !ok || p.ID != "till" || len(cat.Producers()) != 2 || cat.Producers()[0].ID != "shop" {
		t.Errorf("producer by key %+v", p)
	}

	w.ok(w.DeleteConsumer(w.ctx, k.Key, k.ChangedAt))
	cat = rises("consumer deleted")
	if _, ok := cat.Consumer(ch, "billing"); ok {
		t.Error("the deleted consumer is still there")
	}
	for k := range cat.Consumers {
		t.Errorf("consumer %s is still there", k.ID)
	}
}

func TestCatalogKeepsIDsOfDifferentCaseApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "SHOP", Name: "S", Token: "t"}))
	must(w.PutProducer(w.ctx, storage.PutStakeholder{ID: "shöp", Name: "S", Token: "t"}))
	if n := len(must(w.Catalog(w.ctx)).Producers()); n != 3 {
		t.Errorf("%d producers, want 3", n)
	}
}

func TestPutIsConditional(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	puts := []struct {
		name string
		made time.Time
		put  func(since *time.Time) (time.Time, error)
	}{
		{"producer", w.producer.ChangedAt, func(since *time.Time) (time.Time, error) {
			p, err := w.PutProducer(w.ctx, storage.PutStakeholder{ID: "shop", Name: "n", Token: "t", IfUnmodifiedSince: since})
			if err != nil {
				return time.Time{}, err
			}
			return p.ChangedAt, nil
		}},
		{"channel", w.channel.ChangedAt, func(since *time.Time) (time.Time, error) {
			c, err := w.PutChannel(w.ctx, storage.PutStakeholder{ID: "orders", Name: "n", Token: "t", IfUnmodifiedSince: since})
			if err != nil {
				return time.Time{}, err
			}
			return c.ChangedAt, nil
		}},
		{"consumer", k.ChangedAt, func(since *time.Time) (time.Time, error) {
			c, err := w.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePull, CallbackURL: "http://x/",
				PutStakeholder: storage.PutStakeholder{ID: "k", Name: "n", Token: "t", IfUnmodifiedSince: since}})
			if err != nil {
				return time.Time{}, err
			}
			return c.ChangedAt, nil
		}},
	}
	for _, p := range puts {
		t.Run(p.name, func(t *testing.T) {
			if p.made.Nanosecond() != 0 || p.made.Location() != time.UTC {
				t.Errorf("made at %v, want whole seconds in UTC", p.made)
			}
			before := must(w.Catalog(w.ctx)).Version()
			if _, err := p.put(nil); !errors.Is(err, storage.ErrPreconditionMissing) {
				t.Errorf("without a condition: %v", err)
			}
			for _, off := range []time.Duration{-time.Second, time.Second} {
				other := p.made.Add(off)
				if _, err := p.put(&other); !errors.Is(err, storage.ErrPreconditionFailed) {
					t.Errorf("of another version: %v", err)
				}
			}
			if after := must(w.Catalog(w.ctx)).Version(); after != before {
				t.Error("a refused update raised the catalog's version")
			}
			// Two more changes within the second: each is a version of its own.
			seen := map[time.Time]bool{p.made: true}
			last := p.made
			for range 3 {
				next, err := p.put(&last)
				if err != nil {
					t.Fatal(err)
				}
				if seen[next] || !next.After(last) || next.Nanosecond() != 0 {
					t.Fatalf("version %v after %v", next, last)
				}
				if _, err := p.put(&last); !errors.Is(err, storage.ErrPreconditionFailed) {
					t.Errorf("the version before is taken for the current one: %v", err)
				}
				seen[next], last = true, next
			}
			if p.name == "producer" {
				return
			}
			if n := must(w.DeadCounts(w.ctx)).Consumers[0]; p.name == "channel" && n.ChannelName != "n" || p.name == "consumer" && n.ConsumerName != "n" {
				t.Errorf("the summary still has the old name: %+v", n)
			}
			if w.number(`SELECT COUNT(*) FROM dlq_summary WHERE channelName = 'n'`) != 1 {
				t.Error("dlq_summary has the old name of the channel")
			}
		})
	}
}

// TestPutAtOnce has many create one thing at the same moment: one makes it, the others are told to name the version.
func TestPutAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const racers = 8
	kinds := map[string]func(s *storage.Store, i int) error{
		"producer": func(s *storage.Store, i int) error {
			_, err := s.PutProducer(w.ctx, storage.PutStakeholder{ID: "new", Name: fmt.Sprint(i), Token: "t"})
			return err
		},
		"channel": func(s *storage.Store, i int) error {
			_, err := s.PutChannel(w.ctx, storage.PutStakeholder{ID: "new", Name: fmt.Sprint(i), Token: "t"})
			return err
		},
		"consumer": func(s *storage.Store, i int) error {
			_, err := s.PutConsumer(w.ctx, storage.PutConsumer{ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://x/",
				PutStakeholder: storage.PutStakeholder{ID: "new", Name: fmt.Sprint(i), Token: "t"}})
			return err
		},
	}
	for name, put := range kinds {
		errs := make([]error, racers)
		var wg sync.WaitGroup
		for i := range racers {
			s := w.another()
			wg.Go(func() { errs[i] = put(s, i) })
		}
		wg.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if !errors.Is(err, storage.ErrPreconditionMissing) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if made != 1 {
			t.Errorf("%s: made %d times", name, made)
		}
	}
	cat := must(w.Catalog(w.ctx))
	if len(cat.Producers()) != 2 || len(cat.Channels()) != 2 || len(cat.ConsumersOf(w.channel)) != 1 {
		t.Errorf("%d producers, %d channels, %d consumers", len(cat.Producers()), len(cat.Channels()), len(cat.ConsumersOf(w.channel)))
	}
}

// TestUpdatesAtOnce has many change one version at the same moment: one wins.
func TestUpdatesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		s := w.another()
		wg.Go(func() {
			_, errs[i] = s.PutChannel(w.ctx, storage.PutStakeholder{ID: "orders", Name: fmt.Sprint(i), Token: "t", IfUnmodifiedSince: &w.channel.ChangedAt})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, storage.ErrPreconditionFailed) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d of the updates of one version were made", won)
	}
}

func TestNewConsumerCountsZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	counts := must(w.DeadCounts(w.ctx))
	if len(counts.Consumers) != 1 {
		t.Fatalf("%+v", counts)
	}
	if c := counts.Consumers[0]; c.ConsumerKey != k.Key || c.Dead != 0 || c.ChannelID != "orders" || c.ChannelName != "Orders" || c.ConsumerID != "k" || c.ConsumerName != "Consumer k" || c.LastCheckedAt != nil {
		t.Errorf("%+v", c)
	}
	if counts.LastCheckedAt != nil || counts.AsOf.IsZero() || counts.Uncounted != 0 {
		t.Errorf("%+v", counts)
	}
}
