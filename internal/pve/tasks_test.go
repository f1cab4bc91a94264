package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// TestOwnTasks returns the tasks of our token about the requested VMs.
func TestOwnTasks(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"offline"}]`))
		var rows []string
		for _, task := range []string{
			"qmshutdown:101:recast@pve!roll", "qmmove:9900-scsi1>101-scsi1:recast@pve!roll", "qmmove:301-scsi1>7900-scsi1:recast@pve!roll",
			"qmshutdown:301:recast@pve!roll", "qmstop:101:root@pam", "imgcopy::recast@pve!roll", "qmstart:1010:recast@pve!roll",
		} {
			rows = append(rows, `{"upid":"UPID:pve1:0000ABCD:00012345:386D4380:`+task+`:"}`)
		}
		pve1.On("GET /nodes/pve1/tasks?source=active&limit=500", data("["+strings.Join(rows, ",")+"]"))
		got, err := c.OwnTasks(t.Context(), func(id cluster.VMID) bool { return id == 101 })
		must(t, err)
		same(t, "tasks", []string{"qmshutdown 101 on pve1", "qmmove 9900-scsi1>101-scsi1 on pve1"}, got)
	})
}

const (
	taskPath   = "GET /nodes/pve1/tasks/UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve%21roll:"
	statusPath = taskPath + "/status"
	logPath    = taskPath + "/log?limit=500"
)

var running = data(`{"status":"running","upid":"` + testUPID + `"}`)

func stopped(exit string) route { return data(`{"status":"stopped","exitstatus":"` + exit + `"}`) }

func TestTask(t *testing.T) {
	t.Parallel()
	log := data(`[{"n":1,"t":"removing image"},{"n":2,"t":"cannot free fast:vm-101-disk-0"},{"n":3,"t":"TASK WARNINGS: 1"}]`)
	cases := map[string]struct {
		answers []route
		want    string
		lost    bool
	}{
		"ends well":          {[]route{running, running, stopped("OK")}, "", false},
		"outlasts a fault":   {[]route{running, raw("595 Connection refused", ""), lost, stopped("OK")}, "", false},
		"outlasts a restart": {[]route{running, raw("500 ipcc_send_rec[1] failed: Connection refused", ""), stopped("OK")}, "", false},
		"fails":              {[]route{running, stopped("can't remove VM 101 - protection mode enabled")}, "task qmdestroy 101 on pve1: can't remove VM 101 - protection mode enabled", false},
		"warns":              {[]route{stopped("WARNINGS: 1")}, "task qmdestroy 101 on pve1: WARNINGS: 1 (removing image | cannot free fast:vm-101-disk-0)", false},
		"was killed":         {[]route{running, stopped("unexpected status")}, "task qmdestroy 101 on pve1: unexpected status (removing image | cannot free fast:vm-101-disk-0); since then: VM 101 \"\" on pve1 is there", true},
		"ends nowhere":       {[]route{data(`{"status":"stopped"}`)}, "task qmdestroy 101 on pve1: unexpected status (removing image | cannot free fast:vm-101-disk-0); since then: VM 101 \"\" on pve1 is there", true},
		"is unknown": {
			[]route{raw("400 Parameter verification failed.", `{"errors":{"upid":"no such task"},"data":null}`)},
			cluster.ErrLostAnswer.Error() + ": task qmdestroy 101 on pve1: " + strings.TrimSuffix(statusPath, "%21roll:/status") + "!roll:/status: 400 Parameter verification failed.: upid: no such task; since then: VM 101 \"\" on pve1 is there", true,
		},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			pve1.On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
			pve1.On(statusPath, tc.answers...)
			pve1.On(logPath, log)
			pve1.On("GET /nodes/pve1/qemu/101/config", data(`{"digest":"d"}`))
			pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[]`))
			err := c.DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1", Digest: "d"})
			same(t, "error", cmp.Or(tc.want, "<nil>"), fmt.Sprint(err))
			if errors.Is(err, cluster.ErrLostAnswer) != tc.lost {
				t.Errorf("lost answer: %v, want %v", !tc.lost, tc.lost)
			}
		})
	}
}

// TestTaskPolls: the end of a short task is seen soon, and a long one is polled
// hardly more often than the pause says. The next of its kind is polled when it is
// due.
func TestTaskPolls(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		takes, late time.Duration // of the first task
		looks       int
		lateNext    time.Duration // of the third
		next        int           // polls of that one
	}{
		"at once":     {0, 0, 1, 0, 1},
		"short":       {250 * time.Millisecond, 60 * time.Millisecond, 11, 20 * time.Millisecond, 4},
		"a second":    {time.Second, 250 * time.Millisecond, 17, 40 * time.Millisecond, 5},
		"ten minutes": {10 * time.Minute, 2 * time.Second, 325, 2 * time.Second, 305},
	}
	for name, tc := range cases {
		runInBubble(t, name, func(t *testing.T) {
			s := newSite(t)
			pve1 := s.Node(t, "pve1")
			end := time.Now().Add(tc.takes)
			pve1.On("POST /nodes/pve1/qemu", data(`"`+testUPID+`"`))
			pve1.On(statusPath, func(w http.ResponseWriter, r *http.Request) {
				answer := running
				if !time.Now().Before(end) {
					answer = stopped("OK")
				}
				answer(w, r)
			})
			c := s.clientWith(t, api.Options{RootCAs: s.Pool(), Poll: 2 * time.Second}, "pve1")
			for i := range 3 {
				before := len(pve1.Requests()) - len(changes(pve1.Requests()))
				end = time.Now().Add(tc.takes)
				must(t, c.CreateVM(t.Context(), "pve1", 101, nil))
				late, looks := time.Since(end), len(pve1.Requests())-len(changes(pve1.Requests()))-before
				if i == 0 && (late > tc.late || looks > tc.looks) || i == 2 && (late > tc.lateNext || looks > tc.next) {
					t.Errorf("task %d: %d looks, seen %s after its end", i+1, looks, late)
				}
			}
		})
	}
}

func TestWarningsOfOtherTasksAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("POST /nodes/pve1/qemu", data(`"`+testUPID+`"`))
		pve1.On(statusPath, stopped("WARNINGS: 1"))
		pve1.On(logPath, data(`[{"n":1,"t":"iothread is only valid with virtio disk"}]`))
		var warned []string
		c := s.clientWith(t, api.Options{RootCAs: s.Pool(), Warn: func(text string) { warned = append(warned, text) }}, "pve1")
		must(t, c.CreateVM(t.Context(), "pve1", 101, nil))
		want := []string{"task qmdestroy 101 on pve1: WARNINGS: 1 (iothread is only valid with virtio disk)"}
		same(t, "warned", want, warned)
	})
}

func TestTaskWaitEnds(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		timeout time.Duration
		status  route
		within  time.Duration
	}{
		"with the context":                 {time.Minute, running, time.Minute},
		"when Proxmox becomes unavailable": {24 * time.Hour, raw("595 Connection refused", ""), outage + time.Minute},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			pve1.On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
			pve1.On(statusPath, tc.status)
			ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
			defer cancel()
			start := time.Now()
			err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
			if !errors.Is(err, cluster.ErrLostAnswer) {
				t.Errorf("error is %v", err)
			}
			if took := time.Since(start); took > tc.within {
				t.Errorf("took %s", took)
			}
		})
	}
}
