package pve

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
)

func TestPower(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 101, Host: "pve1"}
	start := func(t *testing.T, c *Client) error { return c.Start(t.Context(), vm) }
	shutdown := func(t *testing.T, c *Client) error { return c.Shutdown(t.Context(), vm, 1500*time.Millisecond) }
	stop := func(t *testing.T, c *Client) error { return c.Stop(t.Context(), vm) }
	state := func(status, qmp string) route { return data(`{"status":"` + status + `","qmpstatus":"` + qmp + `"}`) }
	cases := map[string]struct {
		do     func(*testing.T, *Client) error
		what   string
		params map[string]string
		task   route
		states []route
		want   string
	}{
		"start":                           {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "prelaunch"), state("running", "running")}, "<nil>"},
		"start by HA":                     {start, "start", map[string]string{}, stopped("OK"), []route{state("stopped", "stopped"), state("stopped", "stopped"), state("running", "running")}, "<nil>"},
		"start what runs":                 {start, "start", map[string]string{}, stopped("VM 101 already running"), []route{state("running", "running")}, "<nil>"},
		"start fails":                     {start, "start", map[string]string{}, stopped("volume 'isos:iso/x.iso' does not exist"), nil, "task qmdestroy 101 on pve1: volume 'isos:iso/x.iso' does not exist"},
		"start into an error":             {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "io-error")}, "VM 101 running: running, io-error"},
		"start stays paused":              {start, "start", map[string]string{}, stopped("OK"), []route{state("running", "paused")}, "VM 101 running: gave up after 2m0s; last seen: running, paused: context deadline exceeded"},
		"shutdown":                        {shutdown, "shutdown", map[string]string{"timeout": "2", "forceStop": "0"}, stopped("OK"), []route{state("running", "running"), state("stopped", "stopped")}, "<nil>"},
		"shutdown is not followed":        {shutdown, "shutdown", map[string]string{"timeout": "2", "forceStop": "0"}, stopped("VM quit/powerdown failed - got timeout"), nil, "task qmdestroy 101 on pve1: VM quit/powerdown failed - got timeout"},
		"stop":                            {stop, "stop", map[string]string{}, stopped("OK"), []route{state("stopped", "stopped")}, "<nil>"},
		"stop, qmp is no longer reported": {stop, "stop", map[string]string{}, stopped("OK"), []route{data(`{"status":"stopped"}`)}, "<nil>"},
		"stop of a VM that is gone":       {stop, "stop", map[string]string{}, stopped("OK"), []route{raw(noVM101, "")}, "VM 101 stopped: GET /nodes/pve1/qemu/101/status/current: " + noVM101},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			var params map[string]string
			pve1.On("POST /nodes/pve1/qemu/101/status/"+tc.what, sent(&params, data(`"`+testUPID+`"`)))
			pve1.On(statusPath, tc.task)
			pve1.On(logPath, data(`[]`))
			pve1.On("GET /nodes/pve1/qemu/101/status/current", tc.states...)
			same(t, "error", tc.want, fmt.Sprint(tc.do(t, c)))
			same(t, "parameters", tc.params, params)
		})
	}
}

// TestShutdownByHA has a guest that needs most of its grace period: the task of a VM
// that Proxmox HA manages ends at once.
func TestShutdownByHA(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		began := time.Now()
		pve1.On("POST /nodes/pve1/qemu/101/status/shutdown", data(`"`+testUPID+`"`))
		pve1.On(statusPath, stopped("OK"))
		pve1.On("GET /nodes/pve1/qemu/101/status/current", func(w http.ResponseWriter, r *http.Request) {
			state := "running"
			if time.Since(began) > 4*time.Minute {
				state = "stopped"
			}
			data(`{"status":"`+state+`","qmpstatus":"`+state+`","ha":{"managed":1}}`)(w, r)
		})
		vm := cluster.VM{ID: 101, Host: "pve1", HA: true}
		if err := c.Shutdown(t.Context(), vm, 5*time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// TestUnansweredIsReported: the caller of a power change learns whether an unanswered
// request may still be carried out, although the VM is as wanted.
func TestUnansweredIsReported(t *testing.T) {
	t.Parallel()
	start := func(ctx context.Context, t *testing.T, l lab) error { return l.Start(ctx, l.read(t, 9011)) }
	for name, c := range map[string]struct {
		loss  loss
		on    bool
		do    func(context.Context, *testing.T, lab) error
		noted bool
	}{
		"its task was found":         {do: start},
		"it was sent twice":          {loss: loss{before: true}, do: start, noted: true},
		"it is unknown who did it":   {loss: loss{before: true}, on: true, noted: true, do: shutdownMeanwhile},
		"its task was found, it ran": {on: true, do: shutdownMeanwhile},
	} {
		runInBubble(t, name, func(t *testing.T) {
			l := newLosing(t, c.loss)
			if c.on {
				must(t, l.lab.Start(t.Context(), l.lab.read(t, 9011)))
			}
			l.arm()
			ctx, unanswered := cluster.WithUnanswered(t.Context())
			if err := c.do(ctx, t, l.lab); err != nil || unanswered() != c.noted {
				t.Errorf("error %v; noted: %t, want %t", err, unanswered(), c.noted)
			}
		})
	}
}

// shutdownMeanwhile shuts down a VM that switches itself off at the same time.
func shutdownMeanwhile(ctx context.Context, t *testing.T, l lab) error {
	time.AfterFunc(2*time.Second, func() { _ = l.world.PowerOff(9011) })
	return l.Shutdown(ctx, l.read(t, 9011), time.Minute)
}
