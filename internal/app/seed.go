package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/redrive-mq/redrive/storage"
)

// Seed is what a seed file asks for. What exists already is left as it is, whatever the file says.
type Seed struct {
	Channels  []SeedStakeholder `yaml:"channels"`
	Producers []SeedStakeholder `yaml:"producers"`
	Consumers []SeedConsumer    `yaml:"consumers"`
}

// SeedStakeholder is a channel or a producer. An empty name is the id; an empty token is a random one, which nobody
// ever sees.
type SeedStakeholder struct {
	ID    string `yaml:"id"    json:"id"`
	Name  string `yaml:"name"  json:"name"`
	Token string `yaml:"token" json:"-"`
}

// SeedConsumer is a consumer of a channel, which the same file or an earlier start made.
type SeedConsumer struct {
	SeedStakeholder `yaml:",inline"`

	Channel     string               `yaml:"channel"     json:"channel"`
	Type        storage.ConsumerType `yaml:"type"        json:"type"` // empty: push
	CallbackURL string               `yaml:"callbackUrl" json:"callbackUrl"`
}

const (
	maxSeedFile = 16 << 20
	maxID       = 255 // bytes, of ids, names and tokens
)

// readSeed reads and checks a seed file. The error names the file and the entry.
func readSeed(path string) (*Seed, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("seed file: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxSeedFile+1))
	if err != nil {
		return nil, fmt.Errorf("seed file: %w", err)
	}
	if len(text) > maxSeedFile {
		return nil, fmt.Errorf("seed file %s: it is larger than %d bytes", path, maxSeedFile)
	}
	seed, err := parseSeed(text)
	if err != nil {
		return nil, fmt.Errorf("seed file %s: %w", path, err)
	}
	return seed, nil
}

func parseSeed(text []byte) (*Seed, error) {
	seed := &Seed{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(seed); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", ""))
	}
	for kind, list := range map[string][]SeedStakeholder{"channel": seed.Channels, "producer": seed.Producers} {
		for i := range list {
			if err := list[i].check(); err != nil {
				return nil, fmt.Errorf("%s %d: %w", kind, i+1, err)
			}
		}
	}
	for i := range seed.Consumers {
		if err := seed.Consumers[i].check(); err != nil {
			return nil, fmt.Errorf("consumer %d: %w", i+1, err)
		}
	}
	return seed, nil
}

func (s *SeedStakeholder) check() error {
	if s.Name == "" {
		s.Name = s.ID
	}
	if s.Token == "" {
		s.Token = storage.NewToken()
	}
	if s.ID == "" {
		return errors.New("it has no id")
	}
	for what, text := range map[string]string{"id": s.ID, "name": s.Name, "token": s.Token} {
		if len(text) > maxID || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return fmt.Errorf("its %s is over %d bytes long or holds control characters", what, maxID)
		}
	}
	return nil
}

func (s *SeedConsumer) check() error {
	if err := s.SeedStakeholder.check(); err != nil {
		return err
	}
	if s.Channel == "" {
		return errors.New("it has no channel")
	}
	switch s.Type {
	case "":
		s.Type = storage.TypePush
	case storage.TypePush, storage.TypePull:
	default:
		return fmt.Errorf("its type is %q, it must be push or pull", s.Type)
	}
	target, err := url.Parse(s.CallbackURL)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
		return errors.New("its callbackUrl is no absolute http or https URL")
	}
	return nil
}

// plant creates what is missing and returns how much that was. Several instances may do it at once.
func (s *Seed) plant(ctx context.Context, store *storage.Store) (created int, err error) {
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return 0, err
	}
	count := func(err error) error {
		switch {
		case err == nil:
			created++
		case errors.Is(err, storage.ErrPreconditionMissing): // another instance was first
			return nil
		}
		return err
	}
	for _, p := range s.Producers {
		if _, ok := catalog.Producer(p.ID); !ok {
			_, err := store.PutProducer(ctx, p.put())
			if err := count(err); err != nil {
				return created, fmt.Errorf("producer %q: %w", p.ID, err)
			}
		}
	}
	for _, c := range s.Channels {
		if _, ok := catalog.Channel(c.ID); !ok {
			_, err := store.PutChannel(ctx, c.put())
			if err := count(err); err != nil {
				return created, fmt.Errorf("channel %q: %w", c.ID, err)
			}
		}
	}
	if catalog, err = store.Catalog(ctx); err != nil {
		return created, err
	}
	for _, k := range s.Consumers {
		channel, ok := catalog.Channel(k.Channel)
		if !ok {
			return created, &seedError{fmt.Sprintf("consumer %q: there is no channel %q", k.ID, k.Channel)}
		}
		if _, ok := catalog.Consumer(channel, k.ID); ok {
			continue
		}
		_, err := store.PutConsumer(ctx, storage.PutConsumer{PutStakeholder: k.put(), ChannelKey: channel.Key, Type: k.Type, CallbackURL: k.CallbackURL})
		if err := count(err); err != nil {
			return created, fmt.Errorf("consumer %q of %q: %w", k.ID, k.Channel, err)
		}
	}
	return created, nil
}

func (s *SeedStakeholder) put() storage.PutStakeholder {
	return storage.PutStakeholder{ID: s.ID, Name: s.Name, Token: s.Token}
}

// seedError says that a seed file asks for what cannot be: waiting will not help.
type seedError struct{ text string }

func (e *seedError) Error() string { return "seed file: " + e.text }

// seedStatus is what /_status shows of a seed file: no tokens, and of callback URLs no user, password or query.
type seedStatus struct {
	Channels  []SeedStakeholder
	Producers []SeedStakeholder
	Consumers []SeedConsumer
}

func (s *Seed) status() seedStatus {
	shown := seedStatus{Channels: s.Channels, Producers: s.Producers, Consumers: make([]SeedConsumer, len(s.Consumers))}
	for i, k := range s.Consumers {
		if target, err := url.Parse(k.CallbackURL); err == nil {
			k.CallbackURL = (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
		}
		shown.Consumers[i] = k
	}
	return shown
}
