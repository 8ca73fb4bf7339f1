package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// How much is sent, by the dead letters that wait for somebody: many orders at first, few when nobody looks.
const (
	deadSlow  = 1_000
	deadStop  = 10_000
	slowPause = 10 * time.Second
	afterFail = time.Second // an order that was not accepted is sent again
)

// article is what can be ordered. The last one is discontinued: the warehouse rejects orders with it.
type article struct {
	SKU   string  `json:"sku"`
	Name  string  `json:"name"`
	Price float64 `json:"unitPrice"`
}

const discontinued = "KB-0001"

func articles() []article {
	return []article{
		{"BK-1042", "Bicycle bell", 9.90},
		{"BK-2210", "Rear light", 24.50},
		{"BK-3301", "Handlebar tape", 17.95},
		{"BK-4470", "Tubeless tyre 40 mm", 48.00},
		{"BK-5108", "Chain 12-speed", 39.90},
		{"BK-6015", "Saddle bag", 34.00},
		{"BK-7723", "Disc brake pads", 14.20},
		{"BK-8850", "Floor pump", 59.00},
		{discontinued, "Cassette player mount", 4.99},
	}
}

type line struct {
	article

	Quantity int `json:"quantity"`
}

type order struct {
	Event    string    `json:"event"`
	OrderID  string    `json:"orderId"`
	PlacedAt time.Time `json:"placedAt"`
	Customer string    `json:"customerId"`
	Shipping string    `json:"shipping"`
	Lines    []line    `json:"lines"`
	Total    float64   `json:"total"`
	Currency string    `json:"currency"`
}

func newOrder(now time.Time) order {
	all := articles()
	o := order{
		Event: "order.placed", OrderID: "ord-" + strings.ToLower(rand.Text()[:12]), PlacedAt: now.UTC().Truncate(time.Millisecond),
		Customer: fmt.Sprintf("cus-%05d", mathrand.IntN(100_000)), Shipping: "standard", Currency: "EUR",
	}
	if mathrand.IntN(5) == 0 {
		o.Shipping = "express"
	}
	for _, i := range mathrand.Perm(len(all) - 1)[:1+mathrand.IntN(3)] {
		o.Lines = append(o.Lines, line{all[i], 1 + mathrand.IntN(3)})
	}
	if mathrand.IntN(10) == 0 {
		o.Lines = append(o.Lines, line{all[len(all)-1], 1})
	}
	for _, l := range o.Lines {
		o.Total += l.Price * float64(l.Quantity)
	}
	o.Total = math.Round(o.Total*100) / 100
	return o
}

// produce sends order after order until ctx ends. One that could not be sent is sent again under its id: the broker
// has it once.
func (d *Demo) produce(ctx context.Context) {
	for {
		wait := d.pace()
		if !pause(ctx, wait) {
			return
		}
		if d.dead.Load() >= deadStop {
			continue
		}
		o := newOrder(time.Now())
		for {
			err := d.broadcast(ctx, o)
			if err == nil || hasStatus(err, http.StatusConflict) {
				break
			}
			if ctx.Err() != nil {
				return
			}
			d.o.Log.Warn("demo: an order was not accepted, it is sent again", "error", err)
			if !pause(ctx, afterFail) {
				return
			}
		}
	}
}

// pace is the wait before the next order.
func (d *Demo) pace() time.Duration {
	if d.dead.Load() >= deadSlow {
		return slowPause
	}
	return d.o.Interval/2 + mathrand.N(d.o.Interval)
}

func (d *Demo) broadcast(ctx context.Context, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	headers := map[string]string{
		"Content-Type":              "application/json",
		"X-Broker-Channel-Token":    channelToken,
		"X-Broker-Producer-ID":      producerID,
		"X-Broker-Producer-Token":   producerToken,
		"X-Broker-Message-ID":       o.OrderID,
		"X-Broker-Metadata-Headers": "X-Event-Type",
		"X-Event-Type":              o.Event,
	}
	if o.Shipping == "express" {
		headers["X-Broker-Message-Priority"] = "5"
	}
	_, _, err = d.api.do(ctx, call{method: http.MethodPost, path: "/channel/" + ChannelID + "/broadcast", headers: headers, body: body})
	return err
}
