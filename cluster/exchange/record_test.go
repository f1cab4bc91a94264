package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// recordLab returns an open record with these requests, and the Proxmox that notes what is done.
func recordLab(t *testing.T, sent parking.Sent) (*clustertest.Proxmox, openRecord) {
	t.Helper()
	rec := parking.Record{Cluster: "lab", Node: "cp1", Run: "r1", VMID: 101, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, ControlPlane: true, Sent: sent}
	description := must.Get(rec.Description())(t)
	px := clustertest.NewProxmox(cluster.VM{ID: 9900, Host: "pve1", Config: map[string]string{"description": description}})
	return px, newOpenRecord(px, 9900, "r1", "cp1", new(Late))
}

// lateLab returns an exchange with that record.
func lateLab(t *testing.T, sent parking.Sent) (*clustertest.Proxmox, *Replace) {
	t.Helper()
	px, rec := recordLab(t, sent)
	return px, &Replace{Proxmox: px, Strategy: cluster.Recreate, Run: "r1", VM: cluster.VM{ID: 101, Host: "pve1"}, Parking: 9900, Late: rec.late}
}

// TestSending: a request is recorded before it is sent, and removed only on its own answer.
func TestSending(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("504: %w", cluster.ErrLostAnswer)
	type row struct {
		before parking.Sent
		err    error
		late   bool // the adapter says that it may still be carried out
		cancel bool
		stays  bool
	}
	must.Each(t, map[string]row{
		"done":                           {},
		"refused":                        {err: errors.New("500 no")},
		"no answer":                      {err: lost, stays: true},
		"done, perhaps by another":       {late: true, stays: true},
		"the sender is cancelled":        {cancel: true, stays: true},
		"the claim is lost":              {err: fault.As(fault.Claimed, errors.New("it is another run's")), stays: true},
		"an earlier one has no answer":   {before: parking.Sent{cluster.SentShutdown: 600}, stays: true},
		"another request has no answer":  {before: parking.Sent{SentStart: 600}},
		"its end was not seen":           {err: context.DeadlineExceeded, stays: true},
		"an earlier one, and this, lost": {before: parking.Sent{cluster.SentShutdown: 600}, err: lost, stays: true},
	}, func(t *testing.T, c row) {
		px, r := recordLab(t, c.before)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := r.sending(ctx, cluster.SentShutdown, time.Minute+LateQueue, func(ctx context.Context) error {
			_, rec, err := r.read(ctx)
			if err != nil || rec.Sent[cluster.SentShutdown] < 360 {
				t.Errorf("when it is sent the record has %v, %v", rec.Sent, err)
			}
			if c.late {
				cluster.NoteUnanswered(ctx)
			}
			if c.cancel {
				cancel()
			}
			px.Done = append(px.Done, "send")
			return c.err
		})
		must.FailIs(t, err, c.err)
		_, rec, err := r.read(t.Context())
		if _, has := rec.Sent[cluster.SentShutdown]; err != nil || has != c.stays {
			t.Errorf("afterwards the record has %v, %v", rec.Sent, err)
		}
		if _, had := c.before[SentStart]; had != (rec.Sent[SentStart] == 600) {
			t.Errorf("the other request: %v", rec.Sent)
		}
		written := 1
		if c.before[cluster.SentShutdown] > 0 {
			written = 0
		}
		must.Equal(t, "changes before it is sent", written, slices.Index(px.Done, "send"))
	})
}

// TestLateIsWaitedOut: this process measures the time, from its first look on. A request that can't
// come any more leaves the record with the next change.
func TestLateIsWaitedOut(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		_, r := lateLab(t, parking.Sent{SentDelete: 300, SentStart: 100})
		var said []string
		r.Say = func(id, text string) { said = append(said, id+": "+text) }
		began := time.Now()
		wait := func(which string, want time.Duration) {
			t.Helper()
			must.Do(t, r.record().await(t.Context(), r.saying("free-blank"), which))
			must.Equal(t, which+" is over after", want, time.Since(began).Round(2*time.Second))
		}
		wait(cluster.SentAddHA, 0)
		wait(SentStart, 100*time.Second)
		wait(SentDelete, 300*time.Second)
		wait(SentDelete, 300*time.Second)
		if len(said) != 2 || !strings.HasPrefix(said[1], "bring-up/free-blank: ") || !strings.Contains(said[1], "delete of VM 101 that run r1 or an earlier one sent") {
			t.Errorf("said %q", said)
		}
		must.Do(t, r.record().update(t.Context(), (*parking.Record).Close))
		if _, rec, err := r.record().read(t.Context()); err != nil || len(rec.Sent) > 0 || rec.Open {
			t.Errorf("record %+v, %v", rec, err)
		}
	})
}

// temporaryVM has one more VM, until a time.
type temporaryVM struct {
	*clustertest.Proxmox
	vm    cluster.VM
	until time.Time
}

func (g *temporaryVM) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	if id == g.vm.ID && time.Now().Before(g.until) {
		return g.vm, nil
	}
	return g.Proxmox.VMConfig(ctx, id)
}

// TestDeleteWaitsForTheOneBefore: a second delete would free the VMID for another VM, which the
// late first one would delete.
func TestDeleteWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	type row struct {
		sent parking.Sent
		gone time.Duration // when the VM is deleted; 0: never
		want time.Duration
	}
	must.Bubbles(t, map[string]row{
		"none was sent":          {nil, 0, 0},
		"another request":        {parking.Sent{cluster.SentShutdown: 300}, 0, 0},
		"it may come":            {parking.Sent{SentDelete: 300}, 0, 300 * time.Second},
		"it is carried out late": {parking.Sent{SentDelete: 300}, 20 * time.Second, 20 * time.Second},
	}, func(t *testing.T, c row) {
		px, r := lateLab(t, c.sent)
		began := time.Now()
		r.Proxmox = &temporaryVM{px, r.VM, began.Add(c.gone)}
		if c.gone == 0 {
			px.Guests[101] = r.VM
		}
		must.Do(t, r.awaitDelete(t.Context()))
		must.Equal(t, "it is over after", c.want, time.Since(began).Round(2*time.Second))
	})
}

// TestRequestOutlivesItsRecord: a request that may still come survives the end of its replacement
// and the start of the next.
func TestRequestOutlivesItsRecord(t *testing.T) {
	t.Parallel()
	px, r := lateLab(t, parking.Sent{cluster.SentShutdown: 360})
	must.Do(t, r.record().update(t.Context(), (*parking.Record).Close))
	_, rec, err := r.record().read(t.Context())
	if err != nil || rec.Open || rec.Sent[cluster.SentShutdown] != 360 || !rec.ControlPlane {
		t.Fatalf("closed: %+v, %v", rec, err)
	}
	mem := parking.Memory{VM: cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}, SystemKey: "scsi0"}
	next, err := parking.Record{Cluster: "lab", Node: "cp1", Run: "r2"}.Opened(mem, &parking.Parking{VM: px.Guests[9900], Record: rec})
	if err != nil || next.Sent[cluster.SentShutdown] != 360 {
		t.Errorf("opened again: %+v, %v", next, err)
	}
	texts := parking.Parking{VM: px.Guests[9900], Record: rec}.Unanswered()
	if len(texts) != 1 || !strings.Contains(texts[0], "so recast waits up to 6m0s before it takes another control plane out") {
		t.Errorf("unanswered: %q", texts)
	}
}
