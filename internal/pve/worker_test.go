package pve

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// TestStartedSince finds a task by everything except its name. The server's clock is
// ten years behind ours, and jumps from day to day.
func TestStartedSince(t *testing.T) {
	t.Parallel()
	const up, clock = 86400, 0x386D4380
	upid := func(ago int, kind, id, user string) string {
		return fmt.Sprintf("UPID:pve1:0000ABCD:%08X:%08X:%s:%s:%s:", (up-ago)*100, clock, kind, id, user)
	}
	move := func(ago int) string { return upid(ago, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll") }
	mine := move(58)
	jumped := strings.Replace(mine, fmt.Sprintf("%08X", clock), fmt.Sprintf("%08X", clock+86400), 1)
	behind := strings.Replace(mine, fmt.Sprintf("%08X", clock), fmt.Sprintf("%08X", clock-86400), 1)
	cases := map[string]struct {
		listed []string
		status route // "": a host that has been up for a day
		want   string
		err    string
	}{
		"it runs":                  {listed: []string{mine}, want: mine},
		"dated a day ahead":        {listed: []string{jumped}, want: jumped},
		"dated a day behind":       {listed: []string{behind}, want: behind},
		"in whole seconds":         {listed: []string{move(64)}, want: move(64)},
		"nothing":                  {status: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", "")},
		"before it was sent":       {listed: []string{move(66)}},
		"before the host's boot":   {listed: []string{move(-1000)}},
		"another disk":             {listed: []string{upid(58, "qmmove", "100-scsi2>200-scsi5", "recast@pve!roll")}},
		"another token":            {listed: []string{upid(58, "qmmove", "100-scsi1>200-scsi5", "recast@pve!other")}},
		"the user itself":          {listed: []string{upid(58, "qmmove", "100-scsi1>200-scsi5", "recast@pve")}},
		"another kind":             {listed: []string{upid(58, "qmcreate", "100-scsi1>200-scsi5", "recast@pve!roll")}},
		"its name is known":        {listed: []string{move(57)}},
		"two of them":              {listed: []string{mine, move(1)}, err: "2 tasks could be the one"},
		"no task's name":           {listed: []string{"UPID:x"}, err: "is not the name of a Proxmox task"},
		"it is just ending":        {listed: []string{mine, mine}, want: mine},
		"other ticks":              {listed: []string{mine}, status: data(`{"uptime":43229,"cpuinfo":{"user_hz":200}}`), want: mine},
		"a host that just booted":  {listed: []string{move(86400 - 10)}, status: data(`{"uptime":40}`), want: move(86400 - 10)},
		"the uptime is unreadable": {listed: []string{mine}, status: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", ""), err: "/nodes/pve1/status: 403"},
		"no uptime in the answer":  {listed: []string{mine}, status: data(`{}`), err: "does not report its uptime"},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			rows := make([]string, 0, len(tc.listed))
			for _, u := range tc.listed {
				rows = append(rows, `{"upid":"`+u+`"}`)
			}
			pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=qmmove", data("["+strings.Join(rows, ",")+"]"))
			if tc.status == nil {
				tc.status = data(`{"uptime":86400,"cpuinfo":{"user_hz":100}}`)
			}
			pve1.On("GET /nodes/pve1/status", tc.status)
			c.tasks.workers.Store(move(57), true)
			sent := time.Now()
			time.Sleep(time.Minute)
			worker := moveWorker(cluster.VM{ID: 100, Host: "pve1"}, "scsi1", 200, "scsi5")
			got, err := c.tasks.startedSince(t.Context(), worker, sent)
			if got != tc.want || tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got %q, error %v", got, err)
			}
			if tc.want == "" {
				return
			}
			if again, err := c.tasks.startedSince(t.Context(), worker, sent); again != "" || err != nil {
				t.Errorf("the second time: %q, error %v", again, err)
			}
		})
	}
}

// TestADeadWorkerIsNotRepeated: the worker of a change dies. However little of it
// shows, it is not sent again, because a volume may already have its new name.
func TestADeadWorkerIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		must(t, l.CreateVM(t.Context(), "pve1", 9090, nil))
		vm := l.read(t, 9011)
		before := l.recorder.Mutations()
		time.AfterFunc(100*time.Millisecond, func() { killWorker(t, l) })
		if err := l.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi1"); !errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("error is %v", err)
		}
		same(t, "sent", 1, l.recorder.Mutations()-before)
	})
}
