package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

// Seed is what a seed file asks for. What exists already is left as it is, whatever the file says.
type Seed struct {
	Channels  []SeedStakeholder `yaml:"channels"`
	Producers []SeedStakeholder `yaml:"producers"`
	Consumers []SeedConsumer    `yaml:"consumers"`

	path string
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

const maxSeedFile = 16 << 20

// readSeed reads and checks a seed file by the rules of the API. The error is a *SettingError that names the file and the
// entry; private allows callback URLs that name private addresses.
func readSeed(path string, private bool) (*Seed, error) {
	seed := &Seed{path: path}
	file, err := os.Open(path)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return nil, seed.wrong(err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxSeedFile+1))
	if err == nil && len(text) > maxSeedFile {
		err = fmt.Errorf("it is larger than %d bytes", maxSeedFile)
	}
	if err == nil {
		err = seed.parse(text, private)
	}
	if err != nil {
		return nil, seed.wrong(err)
	}
	return seed, nil
}

// wrong says that the seed file cannot be used: waiting will not help.
func (s *Seed) wrong(why error) *SettingError {
	return &SettingError{Env: EnvName("SeedFile"), Value: s.path, Allowed: "a YAML file of channels, producers and consumers (" + why.Error() + ")"}
}

func (s *Seed) parse(text []byte, private bool) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(s); err != nil && !errors.Is(err, io.EOF) {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", ""))
	}
	for kind, list := range map[string][]SeedStakeholder{"channel": s.Channels, "producer": s.Producers} {
		for i := range list {
			if err := list[i].check(); err != nil {
				return fmt.Errorf("%s %d: %w", kind, i+1, err)
			}
		}
	}
	for i := range s.Consumers {
		if err := s.Consumers[i].check(private); err != nil {
			return fmt.Errorf("consumer %d: %w", i+1, err)
		}
	}
	return nil
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
	return cmp.Or(web.CheckText("id", s.ID), web.CheckText("name", s.Name), web.CheckText("token", s.Token))
}

func (s *SeedConsumer) check(private bool) error {
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
	return web.CheckCallbackURL(s.CallbackURL, private || s.Type == storage.TypePull)
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
			return created, s.wrong(fmt.Errorf("consumer %q: there is no channel %q", k.ID, k.Channel))
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
