package contract

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// unknownUPID is a valid UPID of no task.
func unknownUPID(node string) string {
	return "UPID:" + node + ":00000001:00000001:00000001:qmstart:100:nobody@pve:"
}

func taskPath(node, upid string) string { return "/nodes/" + node + "/tasks/" + escape(upid) }

// begin starts a task that takes a while: the shutdown of a VM without an operating
// system.
func (s *server) begin(id int, form ...string) (upid string) {
	s.t.Helper()
	s.start(id)
	r := s.do(http.MethodPost, s.vm(id, "status/shutdown"), form...)
	if upid = text(r.Data); !strings.HasPrefix(upid, "UPID:") {
		s.t.Fatalf("no task: %s", r.Status)
	}
	return upid
}

func TestTask(t *testing.T) {
	story(t, "has a UPID that says where, what and whose it is", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		upid := s.taskOK(http.MethodPost, s.vm(id, "status/stop")).UPID
		token, _, _ := strings.Cut(s.place.token, "=")
		want := fmt.Sprintf(`^UPID:%s:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:qmstop:%d:%s:$`, s.place.node, id, regexp.QuoteMeta(token))
		if !regexp.MustCompile(want).MatchString(upid) {
			t.Errorf("%s, want %s", upid, want)
		}
		user, name, _ := strings.Cut(token, "!")
		status := object(t, s.get(taskPath(s.place.node, upid)+"/status"))
		got := []any{status["upid"], status["node"], status["type"], status["id"], status["user"], status["tokenid"], status["status"], status["exitstatus"]}
		same(t, []any{upid, s.place.node, "qmstop", itoa(id), user, name, "stopped", "OK"}, got)
	})
	story(t, "runs, and has no exit status until it has ended", 0, func(t *testing.T, s *server) {
		upid := s.begin(s.newVM(), "timeout=5")
		status := object(t, s.get(taskPath(s.place.node, upid)+"/status"))
		if status["status"] != "running" || status["exitstatus"] != nil {
			t.Error(status)
		}
		s.wait(reply{Data: upid})
	})
	story(t, "can be followed through any node", secondNode, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		e := s.task(http.MethodPost, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/status/stop")
		if e.Exit != "OK" || !strings.HasPrefix(e.UPID, "UPID:"+s.place.node2+":") {
			t.Errorf("%+v", e)
		}
	})
	story(t, "is unknown elsewhere", secondNode, func(t *testing.T, s *server) {
		upid := s.taskOK(http.MethodPost, s.vm(s.newVM(), "status/stop")).UPID
		got := s.do(http.MethodGet, taskPath(s.place.node2, upid)+"/status")
		wantRefusal(t, got, refused, map[string]string{"upid": "no such task"})
	})
	story(t, "continues without pvedaemon", simulated, func(t *testing.T, s *server) {
		r := s.do(http.MethodPost, s.vm(s.newVM(), "status/start"))
		s.sim.world.SetDaemon(s.place.node, false)
		same(t, "595 Connection refused", s.do(http.MethodGet, taskPath(s.place.node, text(r.Data))+"/status").Status)
		time.Sleep(5 * time.Second)
		s.sim.world.SetDaemon(s.place.node, true)
		wantExit(t, s.wait(r), "OK")
	})
	story(t, "is in the list of its node", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		upid := s.taskOK(http.MethodPost, s.vm(id, "status/stop")).UPID
		rows := func(form ...string) []any {
			return list(t, s.get("/nodes/"+s.place.node+"/tasks", append(form, "vmid="+itoa(id), "typefilter=qmstop", "source=all")...))
		}
		// pvedaemon moves a task to the index when it notices its end, and pveproxy reads the
		// active ones every five seconds (AnyEvent.pm, inotify_poll).
		var all, failed []any
		for range 100 {
			all, failed = rows("limit=1"), rows("errors=1")
			isFailed := slices.ContainsFunc(failed, func(row any) bool { return object(t, row)["upid"] == upid })
			if len(all) == 1 && object(t, all[0])["upid"] == upid && object(t, all[0])["status"] == "OK" && !isFailed {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Errorf("%v; among the failed: %v", all, failed)
	})
}

func TestTaskLog(t *testing.T) {
	story(t, "comes in pages", 0, func(t *testing.T, s *server) {
		e := s.uploadOK(iso(), file(s.isoName(), "bytes"))
		r := s.do(http.MethodGet, taskPath(s.place.node, e.UPID)+"/log", "start=1", "limit=2")
		var got []string
		for _, row := range list(t, r.Data) {
			got = append(got, text(object(t, row)["n"])+" "+text(object(t, row)["t"]))
		}
		same(t, []string{"2 " + e.Log[1], "3 " + e.Log[2]}, got)
		if want := fmt.Sprintf(`"total":%d`, len(e.Log)); !strings.Contains(string(r.Body), want) {
			t.Errorf("%s, want %s", r.Body, want)
		}
	})
	story(t, "ends with how the task ended", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		if e := s.taskOK(http.MethodPost, s.vm(id, "status/stop")); e.Log[len(e.Log)-1] != "TASK OK" {
			t.Errorf("%q", e.Log)
		}
		s.start(id)
		e := s.task(http.MethodPost, s.vm(id, "status/start"))
		if want := "TASK ERROR: " + e.Exit; e.Log[len(e.Log)-1] != want {
			t.Errorf("%q, want %s", e.Log, want)
		}
	})
	story(t, "of no task is a line that says so", 0, func(t *testing.T, s *server) {
		rows := list(t, s.get(taskPath(s.place.node, unknownUPID(s.place.node))+"/log"))
		if len(rows) != 1 || !strings.HasPrefix(text(object(t, rows[0])["t"]), "unable to open file - ") {
			t.Error(rows)
		}
	})
}

func TestUnknownTask(t *testing.T) {
	for method, path := range map[string]string{http.MethodGet: "/status", http.MethodDelete: ""} {
		story(t, method+" of one that is not there", 0, func(t *testing.T, s *server) {
			got := s.do(method, taskPath(s.place.node, unknownUPID(s.place.node))+path)
			wantRefusal(t, got, refused, map[string]string{"upid": "no such task"})
		})
		story(t, method+" of what is no UPID", 0, func(t *testing.T, s *server) {
			wantRefusal(t, s.do(method, taskPath(s.place.node, "nonsense")+path), refused, map[string]string{"upid": "unable to parse worker upid"})
		})
	}
	story(t, "someone else's", poorToken, func(t *testing.T, s *server) {
		upid := s.taskOK(http.MethodPost, s.vm(s.newVM(), "status/stop")).UPID
		path := taskPath(s.place.node, upid)
		for _, what := range []string{"/status", "/log"} {
			wantRefusal(t, s.poor(http.MethodGet, path+what), "403 Permission check failed (/nodes/"+s.place.node+", Sys.Audit)", nil)
		}
		wantRefusal(t, s.poor(http.MethodDelete, path), "403 Permission check failed (/nodes/"+s.place.node+", Sys.Modify)", nil)
		if rows := list(t, s.poor(http.MethodGet, "/nodes/"+s.place.node+"/tasks").Data); len(rows) > 0 {
			t.Errorf("sees %d tasks of others", len(rows))
		}
	})
}

// TestWhoseTask: a user owns the tasks of all their tokens, a token only its own.
func TestWhoseTask(t *testing.T) {
	run(t, simulated, func(t *testing.T, s *server) {
		s.sim.world.Revoke(world.ACL{Path: "/", Who: "contract@pve", Role: world.Administrator, Propagate: true})
		s.sim.world.AddRole("Power", "VM.PowerMgmt")
		for _, who := range []string{"contract@pve", simToken} {
			s.sim.world.Grant(world.ACL{Path: "/vms", Who: who, Role: "Power", Propagate: true})
		}
		ticket, csrf := s.login("correct-horse")
		const stop = "/nodes/pve1/qemu/90000/status/stop"
		users, tokens := text(s.withTicket(http.MethodPost, stop, ticket, csrf, "").Data), text(s.do(http.MethodPost, stop).Data)
		same(t, "200 OK", s.withTicket(http.MethodGet, taskPath("pve1", tokens)+"/status", ticket, csrf, "").Status)
		got := s.do(http.MethodGet, taskPath("pve1", users)+"/status")
		wantRefusal(t, got, "403 Permission check failed (/nodes/pve1, Sys.Audit)", nil)
	})
}

func TestStopTask(t *testing.T) {
	story(t, "interrupts its worker", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		upid := s.begin(id, "timeout=60")
		time.Sleep(2 * time.Second)
		if r := s.do(http.MethodDelete, taskPath(s.place.node, upid)); r.Status != "200 OK" || r.Data != nil {
			t.Errorf("%s %v", r.Status, r.Data)
		}
		if got := s.wait(reply{Data: upid}).Exit; !strings.Contains(got, "received interrupt") {
			t.Error(got)
		}
		s.wantStatus(id, "running")
	})
	story(t, "is fine with one that has ended", 0, func(t *testing.T, s *server) {
		upid := s.taskOK(http.MethodPost, s.vm(s.newVM(), "status/stop")).UPID
		if r := s.do(http.MethodDelete, taskPath(s.place.node, upid)); r.Status != "200 OK" {
			t.Error(r.Status)
		}
	})
	story(t, "kill -9 leaves no word of why", simulated, func(t *testing.T, s *server) {
		upid := s.begin(s.newVM())
		s.sim.world.KillTask(upid)
		if e := s.wait(reply{Data: upid}); e.Exit != "unexpected status" {
			t.Errorf("%+v", e)
		}
	})
	story(t, "a reboot of its node does too", simulated, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		upid := text(s.do(http.MethodPost, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/status/start").Data)
		s.sim.world.RebootHost(s.place.node2, time.Minute)
		if e := s.wait(reply{Data: upid}); e.Exit != "unexpected status" {
			t.Errorf("%+v", e)
		}
	})
}

func TestPowerTasks(t *testing.T) {
	story(t, "stop and shut down what is stopped, start what runs", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.stop(id)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/shutdown")), "OK")
		s.start(id)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/start")), fmt.Sprintf("VM %d already running", id))
	})
	story(t, "of no VM fail in the task", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		want := fmt.Sprintf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.place.node, id)
		for _, action := range []string{"start", "stop", "shutdown"} {
			wantExit(t, s.task(http.MethodPost, s.vm(id, "status/"+action)), want)
		}
	})
	story(t, "shutdown gives up and leaves the VM running", 0, func(t *testing.T, s *server) {
		id, began := s.newVM(), time.Now()
		wantExit(t, s.wait(reply{Data: s.begin(id, "timeout=3")}), "VM quit/powerdown failed - got timeout")
		if took := time.Since(began); took < 3*time.Second {
			t.Errorf("after %v", took)
		}
		s.wantStatus(id, "running")
	})
	story(t, "shutdown with force pulls the plug", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		if got := s.wait(reply{Data: s.begin(id, "timeout=3", "forceStop=1")}).Exit; got != "OK" && !strings.HasPrefix(got, "WARNINGS: ") {
			t.Error(got)
		}
		s.wantStatus(id, "stopped")
	})
	story(t, "a VM that has failed still counts as running", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.sim.world.SetQMP(id, "internal-error")
		got := object(t, s.get(s.vm(id, "status/current")))
		if got["status"] != "running" || got["qmpstatus"] != "internal-error" {
			t.Error(got)
		}
	})
}
