package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

const watchEvery = time.Second

// banner says what runs where.
func (d *Demo) banner() error {
	table := tabwriter.NewWriter(d.o.Out, 0, 0, 3, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(table, "  "+strings.Join(cells, "\t")) }
	fmt.Fprintf(table, "\nRedrive runs. Ctrl-C stops it; its data stays in %s.\n\n", d.o.Data)
	row("API", d.o.URL+"/", "described at "+d.o.URL+"/openapi.yaml")
	row("dead letters", d.o.URL+"/dlq-status", "exact, at any instant")
	row("all jobs", d.o.URL+"/job-status")
	row("metrics", d.o.URL+"/metrics", "dead_job_count{channel,consumer}")
	fmt.Fprintf(table, "\nThe demo sends about %.0f orders a second to the channel %s, with four consumers:\n\n", float64(time.Second)/float64(d.o.Interval), ChannelID)
	for _, k := range []consumer{healthy, failing, ailing, pulling} {
		row(k.id, k.kind, k.behaviour)
	}
	fmt.Fprintln(table, "\nWaiting for dead letters: an order is tried three times, which takes 3 seconds.")
	return table.Flush()
}

// watch follows the counts until ctx ends. It tells when the first dead letter is counted, and then what can be done.
func (d *Demo) watch(ctx context.Context) {
	begin, told, slow := time.Now(), false, false
	earlier := int64(-1) // dead letters at the first look
	for ; ; pause(ctx, watchEvery) {
		if ctx.Err() != nil {
			return
		}
		counts, err := d.counts(ctx)
		if err != nil {
			d.o.Log.Debug("demo: no counts", "error", err)
			continue
		}
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		d.dead.Store(total)
		if earlier < 0 {
			earlier = total
		}
		if !told && counts[ailing.id] > 0 && counts[failing.id] > 0 {
			news := fmt.Sprintf("First dead letters counted: %d, %.1f s after the demo began.", total, time.Since(begin).Seconds())
			if earlier > 0 {
				news = fmt.Sprintf("%d dead letters of an earlier run are still here.", earlier)
			}
			told = d.tell(ctx, news) == nil
		}
		if now := total >= deadSlow; now != slow {
			slow = now
			if slow {
				fmt.Fprintf(d.o.Out, "%d dead letters wait: orders come every %s now, until some are requeued or purged.\n", total, slowPause)
			}
		}
	}
}

// counts returns the dead letters of each consumer.
func (d *Demo) counts(ctx context.Context) (map[string]int64, error) {
	var status struct {
		Consumers []struct {
			ChannelID  string `json:"channelId"`
			ConsumerID string `json:"consumerId"`
			DeadCount  int64  `json:"deadCount"`
		} `json:"consumers"`
	}
	if err := d.api.get(ctx, "/dlq-status", nil, &status); err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for _, k := range status.Consumers {
		if k.ChannelID == ChannelID {
			counts[k.ConsumerID] = k.DeadCount
		}
	}
	return counts, nil
}

// tell prints the lines worth trying, about a dead letter that is there.
func (d *Demo) tell(ctx context.Context, news string) error {
	var list struct {
		DeadJobs []struct{ JobRequeueURL string }
	}
	if err := d.api.get(ctx, ailing.path()+"/dlq", nil, &list); err != nil {
		return err
	}
	if len(list.DeadJobs) == 0 {
		return io.EOF // requeued by somebody meanwhile
	}
	requeue := list.DeadJobs[0].JobRequeueURL
	if strings.HasPrefix(requeue, "/") {
		requeue = d.o.URL + requeue
	}

	var out strings.Builder
	fmt.Fprintf(&out, "\n%s Worth trying, in another terminal:\n", news)
	for _, try := range []struct{ what, line string }{
		{"How many are dead, for each consumer", "curl -s " + d.o.URL + "/dlq-status"},
		{"Which of " + ailing.id + " they are, and why each died", "curl -s '" + d.o.URL + "/api/dlq?engine=delivery&status=Pending&limit=3&instanceId=" + ailing.id + "'"},
		{"Heal " + ailing.id, "curl -s -X POST " + d.url + "/heal"},
		{"Requeue one of them: it is delivered at once if " + ailing.id + " is healed", curl("-X POST ", ailing, requeue)},
		{"Purge all dead letters of " + failing.id, curl("-X DELETE ", failing, d.o.URL+failing.path()+"/dlq")},
	} {
		fmt.Fprintf(&out, "\n# %s\n%s\n", try.what, try.line)
	}
	fmt.Fprintln(&out)
	_, err := io.WriteString(d.o.Out, out.String())
	return err
}

// curl is a command line for a request with a consumer's tokens. It prints the status, since some answers are empty.
func curl(options string, k consumer, target string) string {
	return fmt.Sprintf(`curl -s -w '\n%%{http_code}\n' %s-H 'X-Broker-Channel-Token: %s' -H 'X-Broker-Consumer-Token: %s' %s`,
		options, channelToken, k.token, target)
}

func (d *Demo) requeueAllLine(k consumer) string {
	return fmt.Sprintf("curl -s -w '\\n%%{http_code}\\n' -d requeue=%s %s%s/dlq", k.token, d.o.URL, k.path())
}
