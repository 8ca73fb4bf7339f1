//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const databaseName = "redrive_chaos"

// stageState is everything that was started for one run.
type stageState struct {
	cfg       config
	rec       *recorder
	db        database
	witness   *witness
	instances []*instance
	client    *client
	specs     []*spec
	receivers []*receiver
	healed    atomic.Bool

	engines  []*spec
	endpoint *endpoint
}

// stage sets the scene, plays the run, and returns its history and the directory with the logs. Whatever it
// started has ended on return, however it returns.
func stage(ctx context.Context, cfg config, out io.Writer) (h *history, dir string, err error) {
	if dir, err = workDir(cfg); err != nil {
		return nil, dir, err
	}
	s := &stageState{cfg: cfg, specs: cast(), engines: engineCast()}
	info := runInfo{Seed: cfg.Seed, Instances: cfg.Instances, Flavour: cfg.Flavour, Duration: cfg.Duration}
	for _, c := range slices.Concat(s.specs, s.engines) {
		info.Consumers = append(info.Consumers, c.consumerInfo)
	}
	s.rec = newRecorder(info)
	defer func() { err = errors.Join(err, s.tearDown()) }()
	if err := s.setUp(ctx, dir); err != nil {
		return nil, dir, err
	}
	fmt.Fprintln(out, "up; traffic and faults begin")
	if err := s.perform(ctx, out); err != nil {
		return nil, dir, err
	}
	return s.rec.history(), dir, nil
}

// perform plays the acts of a run while watchers and pull consumers do their work from its beginning to its end.
func (s *stageState) perform(ctx context.Context, out io.Writer) error {
	looking, endLooking := context.WithCancel(ctx)
	var lookers sync.WaitGroup
	defer lookers.Wait()
	defer endLooking()
	s.look(ctx, looking, &lookers)
	if err := s.play(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "the traffic is over and all is mended; waiting for rest")
	s.healed.Store(true)
	s.lastDemands(ctx)
	if err := s.lastTriage(ctx); err != nil {
		return err
	}
	if err := s.settle(ctx, restAfterTraffic); err != nil {
		return err
	}
	if err := s.readAll(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "the last redrive")
	if err := s.redriveAll(ctx); err != nil {
		return err
	}
	return s.settle(ctx, restAfterRedrive)
}

const (
	restAfterTraffic = "after the traffic"
	restAfterRedrive = "after the last redrive"
)

func workDir(cfg config) (string, error) {
	if cfg.Dir == "" {
		return os.MkdirTemp("", "redrive-chaos-")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

func (s *stageState) setUp(ctx context.Context, dir string) (err error) {
	if s.db, err = startDatabase(ctx, s.cfg, dir); err != nil {
		return err
	}
	if s.witness, err = newWitness(ctx, s.db, databaseName, s.rec); err != nil {
		return err
	}
	urls := map[string]string{}
	for n, c := range s.specs {
		urls[c.Key] = "http://127.0.0.1:9/never-called"
		if c.Pull {
			continue
		}
		r, err := newReceiver(c, s.rec, s.cfg.Seed+uint64(n))
		if err != nil {
			return err
		}
		s.receivers = append(s.receivers, r)
		urls[c.Key] = r.url()
	}
	if s.endpoint, err = newEndpoint(s.rec, &s.healed, s.cfg.Seed); err != nil {
		return err
	}
	if s.instances, err = newInstances(s.cfg, s.db.DSN(databaseName), dir, s.endpoint.url(), s.rec); err != nil {
		return err
	}
	// All at once: they migrate the same empty database, which must work too.
	ready := make(chan error)
	for _, i := range s.instances {
		go func() { ready <- i.bringUp(ctx, func() bool { return false }) }()
	}
	for range s.instances {
		err = errors.Join(err, <-ready)
	}
	if err != nil {
		return err
	}
	s.client = newClient(s.rec, s.instances)
	if err := prepare(ctx, s.client, s.specs, urls); err != nil {
		return err
	}
	for _, r := range s.receivers {
		if err := r.learnSecret(ctx, s.client); err != nil {
			return err
		}
	}
	for _, c := range s.specs {
		if c.Triage {
			if err := s.witness.makeOld(ctx, c); err != nil {
				return fmt.Errorf("make dead letters old: %w", err)
			}
		}
	}
	return nil
}

// tearDown ends everything, in the order that leaves nobody without what it needs.
func (s *stageState) tearDown() error {
	var all sync.WaitGroup
	for _, i := range s.instances {
		all.Go(i.kill)
	}
	all.Wait()
	if s.client != nil {
		s.client.http.CloseIdleConnections()
	}
	for _, r := range s.receivers {
		r.shut()
	}
	if s.endpoint != nil {
		s.endpoint.shut()
	}
	if s.witness != nil {
		s.witness.db.Close()
	}
	if s.db == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.db.Stop(ctx); err != nil {
		return s.db.Kill()
	}
	return nil
}

// play runs the traffic with its faults; on its return all that was broken is mended, but for the consumers.
func (s *stageState) play(ctx context.Context) error {
	traffic, endTraffic := context.WithTimeout(ctx, s.cfg.Duration)
	defer endTraffic()
	var actors sync.WaitGroup
	defer actors.Wait()
	s.act(ctx, traffic, &actors)
	err := s.torment(ctx, traffic)
	if err != nil {
		endTraffic()
	}
	return err
}

func (s *stageState) rng(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(s.cfg.Seed, stream)) }

// look starts those who watch, and the pull consumers, who have to work through what the traffic left.
func (s *stageState) look(ctx, looking context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { watch(ctx, looking, s.client) })
	wg.Go(func() { s.witness.look(looking) })
	for _, c := range s.specs {
		for n := range 3 {
			if c.Pull {
				p := &puller{client: s.client, spec: c, rng: s.rng(uint64(200 + n)), good: &s.healed}
				wg.Go(func() { p.run(ctx, looking) })
			}
		}
	}
}

// act starts the actors that end with the traffic.
func (s *stageState) act(ctx, traffic context.Context, wg *sync.WaitGroup) {
	const producers = 16
	for n := range producers {
		p := &producer{
			client: s.client, name: fmt.Sprintf("p%d", n), rng: s.rng(uint64(100 + n)),
			every: time.Second * producers / time.Duration(s.cfg.Rate),
		}
		wg.Go(func() { p.run(ctx, traffic) })
	}
	for n, c := range s.specs {
		if c.Redrive {
			p := &operator{client: s.client, rng: s.rng(uint64(300 + n))}
			wg.Go(func() { p.requeues(ctx, traffic, c) })
		}
		if c.Purged {
			p := &operator{client: s.client, rng: s.rng(uint64(400 + n))}
			wg.Go(func() { p.purges(ctx, traffic, c) })
		}
		for k := range 2 {
			if c.Triage {
				p := &triager{client: s.client, spec: c, rng: s.rng(uint64(800 + 10*n + k)), limit: patience}
				wg.Go(func() { p.run(ctx, traffic) })
			}
		}
	}
	s.employ(ctx, traffic, wg)
	for n, r := range s.receivers {
		wg.Go(func() { r.torment(traffic, s.rng(uint64(500+n))) })
	}
}

// employ starts those who give the engines work.
func (s *stageState) employ(ctx, traffic context.Context, wg *sync.WaitGroup) {
	for n, c := range s.engines {
		of := func(name string, stream int) *employer {
			return &employer{client: s.client, name: fmt.Sprintf("%s%d", name, n), spec: c, rng: s.rng(uint64(1100 + 10*n + stream))}
		}
		wg.Go(func() { of("retry", 0).retries(ctx, traffic) })
		switch c.Engine {
		case engineAlerts:
			wg.Go(func() { of("alert", 1).alerts(ctx, traffic) })
			continue
		case engineRemote:
			wg.Go(func() { of("msg", 1).messages(ctx, traffic, 500*time.Millisecond) })
		case engineLocked:
			wg.Go(func() { of("msg", 1).messages(ctx, traffic, 2*time.Second) })
		}
		wg.Go(func() { of("demand", 2).demands(ctx, traffic) })
	}
}

// torment breaks instances and database until the traffic ends; on return all run again.
func (s *stageState) torment(ctx, traffic context.Context) error {
	harm, end := context.WithCancel(traffic)
	defer end()
	t := &tormentor{rec: s.rec, db: s.db, duration: s.cfg.Duration}
	done := make(chan error)
	for _, i := range s.instances {
		go func() { done <- t.instance(ctx, harm, i, s.rng(uint64(600+i.n))) }()
	}
	go func() { done <- t.database(ctx, harm, s.rng(700)) }()
	var err error
	for range len(s.instances) + 1 {
		if failed := <-done; failed != nil {
			err = errors.Join(err, failed)
			end() // no use in going on
		}
	}
	return errors.Join(err, ctx.Err())
}
