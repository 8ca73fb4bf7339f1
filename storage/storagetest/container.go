package storagetest

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/testcontainers/testcontainers-go"
	containermysql "github.com/testcontainers/testcontainers-go/modules/mysql"

	"github.com/redrive-mq/redrive/storage/privatedb"
)

const (
	image         = "mysql:8.4"
	rootPassword  = "redrive"
	stopTimeout   = 30 * time.Second
	answerTimeout = 2 * time.Minute // of a server that recovers after it was killed
)

// engineAnswers tells whether containers can be started here.
func engineAnswers(ctx context.Context) (answers bool) {
	defer func() {
		if recover() != nil { // testcontainers panics on some configurations that it cannot read
			answers = false
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	return err == nil && provider.Health(ctx) == nil
}

// container is MySQL in a container.
type container struct {
	*containermysql.MySQLContainer
	address atomic.Pointer[string]
	network string // of the driver's, in this process alone, once stays was called; else empty
}

var containers atomic.Int64

func startContainer(ctx context.Context, flags ...string) (_ *container, err error) {
	c := &container{}
	c.MySQLContainer, err = containermysql.Run(ctx, image,
		containermysql.WithUsername("root"), containermysql.WithPassword(rootPassword),
		testcontainers.WithCmdArgs(append([]string{"--skip-log-bin", "--max-connections=500"}, flags...)...))
	if err == nil {
		err = c.find(ctx)
	}
	if err != nil {
		_ = c.remove()
		return nil, fmt.Errorf("starting %s for the tests: %w", image, err)
	}
	return c, nil
}

// stays makes the DSN stay over restarts: the engine gives the server another port at each start.
func (c *container) stays() {
	c.network = fmt.Sprintf("container%d", containers.Add(1))
	mysql.RegisterDialContext(c.network, func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", *c.address.Load())
	})
}

// find learns where the server is reached.
func (c *container) find(ctx context.Context) error {
	address, err := c.PortEndpoint(ctx, "3306/tcp", "")
	if err == nil {
		c.address.Store(&address)
	}
	return err
}

// DSN is as of privatedb.Server.
func (c *container) DSN(database string) string {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = "root", rootPassword, "tcp", *c.address.Load(), database
	if c.network != "" {
		cfg.Net, cfg.Addr = c.network, "mysql"
	}
	return cfg.FormatDSN()
}

// Kill ends the server at once, and panics where the engine does not do it. It is asked in order and has no time.
func (c *container) Kill() {
	var atOnce time.Duration
	if err := c.Stop(context.Background(), &atOnce); err != nil {
		panic(err)
	}
}

// Restart starts the server again on the same data and returns once it answers.
func (c *container) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c.Kill()
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.find(ctx); err != nil {
		return err
	}
	cfg, err := mysql.ParseDSN(c.DSN(""))
	if err != nil {
		return err
	}
	return privatedb.AwaitAnswer(ctx, cfg)
}

// remove takes the container away, with its data, however far it came.
func (c *container) remove() error {
	return testcontainers.TerminateContainer(c.MySQLContainer, testcontainers.StopTimeout(stopTimeout))
}
