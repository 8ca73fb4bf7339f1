package app

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/telemetry"
	"github.com/redrive-mq/redrive/web"
)

// The values of Config.AdminAuth and Config.GatewayAuthMode.
const (
	AdminToken  = "token"
	AdminOpen   = "open"
	GatewayNone = "none"
	GatewayHMAC = "hmac"
)

// Config is everything that can be set. A field is the setting of the same name: DataDir is --data-dir on the command
// line, data-dir in the file and REDRIVE_DATA_DIR in the environment. The tags are read by the command line (help,
// default, placeholder, group) and by Check: allowed says in words what is, secret marks what is never shown.
// Defaults that differ between commands are variables.
type Config struct {
	DatabaseDSN            string `group:"Database" secret:"" placeholder:"DSN" allowed:"user:password@tcp(host:port)/database" help:"The database: user:password@tcp(host:port)/database. Empty: a private server under the data folder."`
	DatabaseMaxConnections int    `group:"Database" default:"32" allowed:"a whole number from 4 to 10000" help:"Connections to the database at a time, of this instance."`
	AutoMigrate            bool   `group:"Database" default:"false" allowed:"true or false" help:"Bring the schema up to date at the start. A private database always is."`
	SealKey                string `group:"Database" secret:"" placeholder:"BASE64,..." allowed:"32 bytes in base64, or several such keys with commas between" help:"Keys for the consumer tokens and signing secrets in the database, 32 bytes in base64 each: the first seals, all open. Empty: a key that the database keeps; that one always opens too."`
	DataDir                string `group:"Database" default:"./.redrive" placeholder:"FOLDER" allowed:"the path of a folder" help:"For the private database and for archives."`

	HTTPListen string `group:"HTTP" default:"${http_listen}" placeholder:"HOST:PORT" allowed:"host:port or :port, the port a number from 0 to 65535" help:"Address to serve on."`

	AdminAuth   string            `group:"Access" default:"${admin_auth}" allowed:"token or open" help:"Who may change producers, channels and consumers. token: holders of an admin token; open: anybody."`
	AdminToken  string            `group:"Access" secret:"" placeholder:"TOKEN" allowed:"at least 8 printable characters without spaces" help:"A bearer token with the role admin."`
	AdminTokens map[string]string `group:"Access" secret:"" placeholder:"NAME=TOKEN;..." allowed:"names with tokens of at least 8 printable characters without spaces" help:"More of them, by name: the log says who changed what. One with a semicolon in it can only stand in the file."`

	BrokerMaxRetry                 int             `group:"Deliveries" default:"${max_retry}" allowed:"a whole number from 0 to 1000" help:"Retries after the first attempt; then a job is dead."`
	BrokerRetryBackoff             []time.Duration `group:"Deliveries" default:"${retry_backoff}" placeholder:"DURATION,..." allowed:"durations from 0s to 168h, as 5s,30s" help:"Waits before the retries. After the last of the list it doubles or grows by 60s, whichever is less."`
	BrokerDeliveryTimeout          time.Duration   `group:"Deliveries" default:"30s" allowed:"a duration from 10ms to 1h" help:"Bound of one attempt."`
	BrokerRationalDelay            time.Duration   `group:"Deliveries" default:"2s" allowed:"a duration from 10ms to 1h" help:"Extra wait before an attempt counts as lost."`
	BrokerConcurrency              int             `group:"Deliveries" default:"64" allowed:"a whole number from 1 to 10000" help:"Attempts at a time for each consumer, in this instance."`
	BrokerAllowPrivateDestinations bool            `group:"Deliveries" default:"${allow_private}" allowed:"true or false" help:"Push to loopback, private and link-local addresses."`
	BrokerConsumerTokenHeader      string          `group:"Deliveries" default:"X-Broker-Consumer-Token" placeholder:"NAME" allowed:"the name of an HTTP header" help:"Header of a push that carries the consumer's token."`
	BrokerMaxBodyBytes             int64           `group:"Deliveries" default:"1048576" allowed:"a whole number from 1 to 67108864" help:"Largest body of a request, in bytes."`
	BrokerMinScheduleDelay         time.Duration   `group:"Deliveries" default:"2m" allowed:"a duration from 0s to 168h" help:"How far ahead a schedule must be."`
	SchedulerInterval              time.Duration   `group:"Deliveries" default:"1s" allowed:"a duration from 10ms to 1h" help:"How often scheduled messages that are due are looked for."`
	DLQSummaryInterval             time.Duration   `group:"Deliveries" default:"${summary_interval}" allowed:"a duration from 100ms to 24h" help:"How often new deaths are folded into dlq_summary. What is shown is exact at any time."`

	GatewayAuthMode   string   `group:"Access" default:"none" allowed:"none or hmac" help:"hmac: every request must carry X-Broker-Signature."`
	GatewayAuthSecret string   `group:"Access" secret:"" placeholder:"BASE64" allowed:"at least 16 bytes in base64" help:"The secret of these signatures."`
	GatewayAuthExempt []string `group:"Access" default:"/_status,/metrics,/debug/pprof/,/livez,/readyz" placeholder:"PREFIX,..." allowed:"beginnings of paths, each with a /" help:"Paths that begin so need no signature."`

	PruneRetentionDays int           `group:"Pruning" default:"${prune_days}" allowed:"a whole number from 0 to 36500" help:"Days after which messages that were delivered to every consumer leave the database for an archive file. 0: never."`
	PruneExportPath    string        `group:"Pruning" placeholder:"FOLDER|URL" allowed:"a folder, or a URL as s3://bucket, gs://bucket or file:///folder" help:"Where archive files go: a folder, s3://bucket or gs://bucket. Empty: archive under the data folder."`
	PruneNodeName      string        `group:"Pruning" placeholder:"NAME" allowed:"1 to 100 letters, digits, dots, dashes and underscores" help:"Begins the names of archive files. Empty: the host's name."`
	PruneInterval      time.Duration `group:"Pruning" default:"1h" allowed:"a duration from 1s to 168h" help:"How often messages are pruned."`

	EngineContext      string        `group:"Engines" default:"publisher" allowed:"publisher or managed-app" help:"Which of RFC-72's deployments this is, and so which engines it has."`
	Engines            string        `group:"Engines" urls:"" placeholder:"JSON" allowed:"a JSON object of engines by name, each with queue and operations" help:"Further engines: {\"billing\":{\"queue\":\"billing-queue\",\"operations\":[\"charge\"]}}. A mapping in the file."`
	EngineTablesConfig string        `group:"Engines" placeholder:"JSON" allowed:"RFC-72's engineTablesConfig as a JSON object" help:"Tables of dead letters and history: storageAccountName (the schema), dlqTableName, historyTableName, retentionDays. Default: engineDlq and engineHistory for 90 days. A mapping in the file."`
	EngineLease        time.Duration `group:"Engines" default:"30s" allowed:"a duration from 1s to 1h" help:"How long after the death of an instance others go on with the runs of engines that it was at. It extends its claims every third of it."`

	SigningMaxAge        time.Duration `group:"Engines" default:"2160h" allowed:"a duration from 1h to 87600h" help:"Age at which a signing secret is due to be rotated. The engine hmac looks as often as its setting every says; by default only on demand."`
	SigningOverlap       time.Duration `group:"Engines" default:"24h" allowed:"a duration from 1s to 8784h" help:"How long a rotated signing secret stays valid beside the new one."`
	SigningNotifyChannel string        `group:"Engines" placeholder:"CHANNEL" allowed:"the id of a channel" help:"Channel that is told of each rotation of a signing secret; never the secret."`

	AlertChannels []string          `group:"Engines" placeholder:"CHANNEL,..." allowed:"ids of channels with commas between" help:"Channels that get every alert of /api/alerts, once."`
	AlertTokens   map[string]string `group:"Engines" secret:"" placeholder:"NAME=TOKEN;..." allowed:"names with tokens of at least 8 printable characters without spaces" help:"Tokens that are good for /api/alerts alone, by name."`

	SeedFile string `group:"Start" placeholder:"FILE" allowed:"the path of a YAML file" help:"YAML file of channels, producers and consumers that are created at the start where they are missing."`

	LogLevel  string `group:"Log" default:"${log_level}" allowed:"debug, info, warn or error" help:"Least level that is logged."`
	LogFormat string `group:"Log" default:"${log_format}" allowed:"json or text" help:"Form of the log, which goes to stderr."`
}

const (
	minTokenLength   = 8
	minGatewaySecret = 16
	sealKeySize      = 32
)

// Check returns nil if an App can run with c; otherwise what is wrong, as *SettingError, joined.
func (c *Config) Check() error {
	v := validator{config: c}
	v.database()
	v.access()
	v.deliveries()
	v.engines()
	v.others()
	return v.errs()
}

func (v *validator) database() {
	c := v.config
	if c.DatabaseDSN != "" {
		if _, err := storage.Config(c.DatabaseDSN); err != nil {
			v.wrong("DatabaseDSN", err.Error())
		}
	}
	v.between("DatabaseMaxConnections", int64(c.DatabaseMaxConnections), 4, 10_000)
	if _, err := c.sealKeys(); err != nil {
		v.wrong("SealKey", err.Error())
	}
	v.must("DataDir", c.DataDir != "" || c.DatabaseDSN != "")
	_, port, err := net.SplitHostPort(c.HTTPListen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	v.must("HTTPListen", err == nil)
}

func (v *validator) access() {
	c := v.config
	v.must("AdminAuth", c.AdminAuth == AdminToken || c.AdminAuth == AdminOpen)
	v.must("AdminToken", c.AdminToken == "" || goodToken(c.AdminToken))
	for name, token := range c.AdminTokens {
		v.must("AdminTokens", name != "" && goodToken(token))
	}
	if c.AdminAuth == AdminToken && c.AdminToken == "" && len(c.AdminTokens) == 0 {
		v.wrong("AdminToken", fmt.Sprintf("it is needed while %s is %s: without one nobody could create a channel", EnvName("AdminAuth"), AdminToken))
	}
	v.must("GatewayAuthMode", c.GatewayAuthMode == GatewayNone || c.GatewayAuthMode == GatewayHMAC)
	secret, err := base64.StdEncoding.DecodeString(c.GatewayAuthSecret)
	v.must("GatewayAuthSecret", err == nil && (len(secret) == 0 || len(secret) >= minGatewaySecret))
	if c.GatewayAuthMode == GatewayHMAC && len(c.GatewayAuthSecret) == 0 {
		v.wrong("GatewayAuthSecret", fmt.Sprintf("it is needed while %s is %s", EnvName("GatewayAuthMode"), GatewayHMAC))
	}
	v.must("GatewayAuthExempt", !slices.ContainsFunc(c.GatewayAuthExempt, func(p string) bool { return !strings.HasPrefix(p, "/") }))
}

func (v *validator) deliveries() {
	c := v.config
	const week = 7 * 24 * time.Hour
	v.between("BrokerMaxRetry", int64(c.BrokerMaxRetry), 0, 1000)
	v.must("BrokerRetryBackoff", len(c.BrokerRetryBackoff) > 0 &&
		!slices.ContainsFunc(c.BrokerRetryBackoff, func(d time.Duration) bool { return d < 0 || d > week }))
	v.lasting("BrokerDeliveryTimeout", c.BrokerDeliveryTimeout, 10*time.Millisecond, time.Hour)
	v.lasting("BrokerRationalDelay", c.BrokerRationalDelay, 10*time.Millisecond, time.Hour)
	v.between("BrokerConcurrency", int64(c.BrokerConcurrency), 1, 10_000)
	v.must("BrokerConsumerTokenHeader", goodHeaderName(c.BrokerConsumerTokenHeader))
	v.between("BrokerMaxBodyBytes", c.BrokerMaxBodyBytes, 1, 64<<20)
	v.lasting("BrokerMinScheduleDelay", c.BrokerMinScheduleDelay, 0, week)
	v.lasting("SchedulerInterval", c.SchedulerInterval, 10*time.Millisecond, time.Hour)
	v.lasting("DLQSummaryInterval", c.DLQSummaryInterval, 100*time.Millisecond, 24*time.Hour)
}

func (v *validator) engines() {
	c := v.config
	v.lasting("EngineLease", c.EngineLease, time.Second, time.Hour)
	v.lasting("SigningMaxAge", c.SigningMaxAge, time.Hour, 87_600*time.Hour)
	v.lasting("SigningOverlap", c.SigningOverlap, time.Second, 8784*time.Hour)
	v.must("SigningNotifyChannel", c.SigningNotifyChannel == "" || web.CheckText("channel", c.SigningNotifyChannel) == nil)
	v.must("AlertChannels", !slices.ContainsFunc(c.AlertChannels, func(id string) bool { return id == "" || web.CheckText("channel", id) != nil }))
	for name, token := range c.AlertTokens {
		v.must("AlertTokens", name != "" && goodToken(token))
	}
	if _, err := v.config.engineSettings(); err != nil {
		v.found = append(v.found, err)
	}
}

func (v *validator) others() {
	c := v.config
	v.between("PruneRetentionDays", int64(c.PruneRetentionDays), 0, 36_500)
	v.lasting("PruneInterval", c.PruneInterval, time.Second, 7*24*time.Hour)
	v.must("PruneNodeName", len(c.PruneNodeName) <= 100 && strings.Trim(c.PruneNodeName, nodeNameCharacters) == "")
	_, err := telemetry.ParseLevel(c.LogLevel)
	v.must("LogLevel", err == nil)
	v.must("LogFormat", c.LogFormat == telemetry.FormatJSON || c.LogFormat == telemetry.FormatText)
}

const (
	alphanumeric         = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	nodeNameCharacters   = alphanumeric + "._-"
	headerNameCharacters = alphanumeric + "-"
)

// goodToken tells whether a token can be sent as a bearer token and is not guessed by hand.
func goodToken(token string) bool {
	return len(token) >= minTokenLength && !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}

// goodHeaderName tells whether a header may carry the consumer's token: those that HTTP itself or a delivery sets may not.
func goodHeaderName(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "", "Connection", "Content-Length", "Content-Type", "Host", "Transfer-Encoding", "User-Agent",
		"X-Request-Id", "X-Broker-Message-Id", "X-Broker-Message-Priority", "X-Broker-Consumer-Id", "X-Broker-Channel-Id", "X-Broker-Metadata-Headers",
		"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature":
		return false
	}
	return len(name) <= 100 && strings.Trim(name, headerNameCharacters) == ""
}

// sealKeys are none where none is set.
func (c *Config) sealKeys() ([][]byte, error) {
	if c.SealKey == "" {
		return nil, nil
	}
	var keys [][]byte
	for i, text := range strings.Split(c.SealKey, ",") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("key %d is not base64", i+1)
		}
		if len(key) != sealKeySize {
			return nil, fmt.Errorf("key %d has %d bytes", i+1, len(key))
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// gatewaySecret is nil where no signature is wanted.
func (c *Config) gatewaySecret() ([]byte, error) {
	if c.GatewayAuthMode != GatewayHMAC {
		return nil, nil
	}
	return base64.StdEncoding.DecodeString(c.GatewayAuthSecret)
}

// pullLease is how long a pull consumer has for a job before the time that it asks for on top.
func (c *Config) pullLease() time.Duration { return c.BrokerDeliveryTimeout + c.BrokerRationalDelay }

// databaseDir is where the private database lives.
func (c *Config) databaseDir() string { return filepath.Join(c.DataDir, "db") }

func (c *Config) exportPath() string {
	if c.PruneExportPath != "" {
		return c.PruneExportPath
	}
	return filepath.Join(c.DataDir, "archive")
}
