package pve

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// TestStartedSince finds a task by everything but its name. The server's clock
// is ten years behind ours.
func TestStartedSince(t *testing.T) {
	t.Parallel()
	const clock = 0x386D4380
	upid := func(start int, kind, id, user string) string {
		return fmt.Sprintf("UPID:pve1:0000ABCD:00012345:%08X:%s:%s:%s:", start, kind, id, user)
	}
	mine := upid(clock-58, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")
	cases := map[string]struct {
		listed []string
		clock  route // answers instead of the header
		want   string
		err    string
	}{
		"it runs":                {listed: []string{mine}, want: mine},
		"rounded, apart":         {listed: []string{upid(clock-64, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")}, want: upid(clock-64, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")},
		"nothing":                {},
		"before it was sent":     {listed: []string{upid(clock-66, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")}},
		"another disk":           {listed: []string{upid(clock-58, "qmmove", "100-scsi2>200-scsi5", "recast@pve!roll")}},
		"another token":          {listed: []string{upid(clock-58, "qmmove", "100-scsi1>200-scsi5", "recast@pve!other")}},
		"the user itself":        {listed: []string{upid(clock-58, "qmmove", "100-scsi1>200-scsi5", "recast@pve")}},
		"another kind":           {listed: []string{upid(clock-58, "qmcreate", "100-scsi1>200-scsi5", "recast@pve!roll")}},
		"its name was told":      {listed: []string{upid(clock-57, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")}},
		"two of them":            {listed: []string{mine, upid(clock-1, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll")}, err: "2 tasks could be the one"},
		"no task's name":         {listed: []string{"UPID:x"}, err: "is not the name of a Proxmox task"},
		"it ends just now":       {listed: []string{mine, mine}, want: mine},
		"a proxy takes the time": {listed: []string{mine}, clock: data(`{"time":"946684800"}`), want: mine},
		"nobody tells the time":  {listed: []string{mine}, clock: raw("403 Permission check failed (/nodes/pve1, Sys.Audit)", ""), err: "/nodes/pve1/time: 403"},
		"no time in the answer":  {listed: []string{mine}, clock: data(`{}`), err: "does not tell what time it is"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				rows := make([]string, 0, len(tc.listed))
				for _, u := range tc.listed {
					rows = append(rows, `{"upid":"`+u+`"}`)
				}
				pve1 := s.node(t, "pve1")
				pve1.on("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=qmmove", func(w http.ResponseWriter, r *http.Request) {
					w.Header()["Date"] = []string{time.Unix(clock, 0).UTC().Format(http.TimeFormat)}
					if tc.clock != nil {
						w.Header()["Date"] = nil
						pve1.on("GET /nodes/pve1/time", tc.clock)
					}
					data("["+strings.Join(rows, ",")+"]")(w, r)
				})
				c := s.client(t, "pve1")
				c.workers.add(upid(clock-57, "qmmove", "100-scsi1>200-scsi5", "recast@pve!roll"))
				sent := time.Now()
				time.Sleep(time.Minute)
				move := moveWorker(cluster.VM{ID: 100, Host: "pve1"}, "scsi1", 200, "scsi5")
				got, err := c.startedSince(t.Context(), move, sent)
				if got != tc.want || tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
					t.Errorf("got %q, error %v", got, err)
				}
				if tc.want == "" {
					return
				}
				if again, err := c.startedSince(t.Context(), move, sent); again != "" || err != nil {
					t.Errorf("a second time: %q, error %v", again, err)
				}
			})
		})
	}
}

// TestADeadWorkerIsNotRepeated has the worker of a change die: however little of
// it shows, it is not sent again, because a volume may have its new name already.
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
		if got := l.recorder.Mutations() - before; got != 1 {
			t.Errorf("sent %d times", got)
		}
	})
}
