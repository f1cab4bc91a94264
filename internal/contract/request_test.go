package contract

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

const unknown = "property is not defined in schema and the schema does not allow additional properties"

func TestUnauthorized(t *testing.T) {
	id, _, _ := strings.Cut(simToken, "!")
	tokens := map[string]struct {
		token func(s *server) string
		want  string // in the simulator's words
	}{
		"no token": {func(*server) string { return "" }, "401 No ticket"},
		"a wrong secret": {func(s *server) string {
			id, _, _ := strings.Cut(s.place.token, "=")
			return id + "=" + secret[:35] + "f"
		}, "401 invalid token value!"},
		"no such token": {func(s *server) string { u, _, _ := strings.Cut(s.place.token, "!"); return u + "!nosuch=" + secret }, "401 no such token 'nosuch' for user '" + id + "'"},
		"no such user":  {func(*server) string { return "nobody@pve!nosuch=" + secret }, "401 no such user ('nobody@pve')"},
	}
	for name, test := range tokens {
		story(t, name+" is told so late, with nothing in the body", 0, func(t *testing.T, s *server) {
			began := time.Now()
			got := s.as(test.token(s), http.MethodGet, "/version")
			same(t, []any{http.StatusUnauthorized, 0}, []any{got.Code, len(got.Body)})
			must.Hold(t, s.sim == nil || got.Status == test.want, "%s, want %s", got.Status, test.want)
			wantTook(t, began, 2900*time.Millisecond, 10*time.Second)
		})
	}
}

func TestErrors(t *testing.T) {
	story(t, "of parameters are listed one by one, and in words", 0, func(t *testing.T, s *server) {
		got := s.do(http.MethodGet, "/cluster/resources", "nosuch=1")
		wantRefusal(t, got, refused, map[string]string{"nosuch": unknown})
		must.Hold(t, got.Message == "Parameter verification failed.\n" && got.Data == nil, "%s", got.Body)
	})
	story(t, "a VM is not there through another node", secondNode, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.do(http.MethodGet, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/config")
		wantRefusal(t, got, fmt.Sprintf("500 Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.place.node2, id), nil)
	})
	story(t, "no such path, or method of it, is a 501, no such node a name that does not resolve", 0, func(t *testing.T, s *server) {
		wantPrefix(t, "500 hostname lookup 'nosuch' failed", s.do(http.MethodGet, "/nodes/nosuch/qemu").Status)
		wantRefusal(t, s.do(http.MethodGet, "/nosuch"), "501 Method 'GET /nosuch' not implemented", nil)
		wantRefusal(t, s.do(http.MethodPut, "/version"), "501 Method 'PUT /version' not implemented", nil)
		wantRefusal(t, s.do(http.MethodPatch, "/version"), "501 method 'PATCH' not available", nil)
	})
	story(t, "some calls want a person", 0, func(t *testing.T, s *server) {
		got := s.do(http.MethodPut, "/access/password", "userid=nobody@pve", "password=correct-horse")
		must.Hold(t, got.Code == http.StatusForbidden &&
			strings.Contains(got.Status, "not available with API token, need proper ticket"), "%v", got.Status)
	})
	story(t, "a storage that is not there", 0, func(t *testing.T, s *server) {
		s.holds("/storage/nosuch", "Datastore.Audit")
		wantRefusal(t, s.do(http.MethodGet, "/nodes/"+s.place.node+"/storage/nosuch/content"), "500 storage 'nosuch' does not exist", nil)
		wantRefusal(t, s.do(http.MethodGet, "/nodes/"+s.place.node+"/storage/nosuch/status"), refused, map[string]string{"storage": "No such storage."})
	})
}

// wantForbidden requires a request with the token without permissions to be refused for that reason.
func (s *server) wantForbidden(method, path, why string, form ...string) {
	s.t.Helper()
	wantRefusal(s.t, s.poor(method, path, form...), "403 Permission check failed"+why, nil)
}

// TestPoorToken: a request without the permission that it needs is refused before anything is looked up.
func TestPoorToken(t *testing.T) {
	const get, put, post, del = http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete
	run(t, poorToken, func(t *testing.T, s *server) {
		id, other, none := s.newVM("scsi1="+s.disk()), s.newVM(), s.freeID()
		node, isos, resource := "/nodes/"+s.place.node, "/storage/"+s.place.isoStorage, haResources+"/vm:"+itoa(id)
		needs := func(on, privilege string) string { return " (" + on + ", " + privilege + ")" }
		vm := func(id int, privilege string) string { return needs("/vms/"+itoa(id), privilege) }
		for _, what := range []string{"config", "status/current", "pending"} {
			s.wantForbidden(get, s.vm(none, what), vm(none, "VM.Audit"))
		}
		s.wantForbidden(get, node+"/status", needs(node, "Sys.Audit"), "nosuch=1")
		s.wantForbidden(get, "/nodes/nosuch/status", needs("/nodes/nosuch", "Sys.Audit"))
		s.wantForbidden(get, "/cluster/status", needs("/", "Sys.Audit"))
		s.wantForbidden(get, "/access/permissions", needs("/access", "Sys.Audit"), "userid=root@pam")
		s.wantForbidden(post, node+"/qemu", "", marked(none)...)
		s.wantForbidden(del, s.vm(id, ""), vm(id, "VM.Allocate"))
		s.wantForbidden(post, s.vm(id, "move_disk"), vm(id, "VM.Config.Disk"), "disk=scsi1", "target-vmid="+itoa(other))
		s.wantForbidden(put, s.vm(id, "resize"), vm(id, "VM.Config.Disk"), "disk=scsi1", "size=2G")
		wantPrefix(t, "403 Permission check failed (/vms/"+itoa(id)+", VM.Config.Disk|", s.poor(put, s.vm(id, "config"), "memory=128").Status)
		s.wantForbidden(put, "/pools", needs("/pool/"+s.place.pool, "Pool.Allocate"), "poolid="+s.place.pool, "vms="+itoa(id))
		s.wantForbidden(post, haResources, needs("/", "Sys.Console"), "sid=vm:"+itoa(id))
		s.wantForbidden(put, resource, needs("/", "Sys.Console"), "state=stopped")
		s.wantForbidden(del, resource, needs("/", "Sys.Console"))
		s.wantForbidden(get, node+"/query-url-metadata", "", "url="+s.place.endpoint+"/x.iso")
		s.wantForbidden(post, node+isos+"/download-url", needs(isos, "Datastore.AllocateTemplate"), "content=iso", "filename=x.iso", "url="+nowhere)
		s.wantForbidden(del, s.content(s.place.isoStorage+":iso/nosuch.iso"), needs(isos, "Datastore.Allocate"))
		if s.place.node2 != "" {
			s.wantForbidden(get, s.vm(id, "migrate"), vm(id, "VM.Migrate"), "target="+s.place.node2)
			s.wantForbidden(post, s.vm(id, "migrate"), vm(id, "VM.Migrate"), "target="+s.place.node2)
		}
	})
}

func TestBodies(t *testing.T) {
	story(t, "may be JSON", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.raw(http.MethodPut, s.vm(id, "config"), "application/json", []byte(`{"onboot":1,"cores":2,"memory":"96","tags":"b;a"}`))
		must.Be(t, got.Status == "200 OK", "%v %v", got.Status, got.Errors)
		c := s.config(id)
		same(t, []string{"1", "2", "96", "a;b"}, []string{c["onboot"], c["cores"], c["memory"], c["tags"]})
	})
	story(t, "booleans are numbers, and some numbers texts", 0, func(t *testing.T, s *server) {
		id := s.newVM("cores=1", "memory=96", "agent=1", "onboot=1")
		c := object(t, s.get(s.vm(id, "config")))
		same(t, []any{1.0, "96", "1", 1.0}, []any{c["cores"], c["memory"], c["agent"], c["onboot"]})
	})
	story(t, "of more than half a megabyte close the connection", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		body := []byte(url.Values{"description": {strings.Repeat("x", 600<<10)}}.Encode())
		got, err := s.try(s.request(s.place.token, http.MethodPut, s.vm(id, "config"), "application/x-www-form-urlencoded", body))
		must.Hold(t, err != nil || got.Code == http.StatusNotImplemented, "%v", got.Status)
		must.Hold(t, s.config(id)["description"] != strings.Repeat("x", 600<<10), "it was taken")
	})
	story(t, "do not belong to a GET or DELETE", 0, func(t *testing.T, s *server) {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			wantPlain(t, s.raw(method, "/version", "application/json", []byte(`{}`)), "501 Unexpected content for method '"+method+"'")
		}
	})
	story(t, "give way to the query string", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.put(s.vm(id, "config")+"?cores=2", "cores=1")
		s.wantKey(id, "cores", "2")
	})
}

func TestProxying(t *testing.T) {
	story(t, "any node answers for every one", secondNode, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		path := "/nodes/" + s.place.node2 + "/qemu/" + itoa(id) + "/config"
		s.put(path, "cores=2")
		same(t, "2", text(object(t, s.get(path))["cores"]))
	})
	failures := map[string]struct {
		failure world.ProxyFailure
		want    string
		after   time.Duration
	}{
		"nobody listens":        {world.ConnectionRefused, "595 Connection refused", 0},
		"there is no way":       {world.NoRouteToHost, "595 No route to host", 3 * time.Second},
		"nobody answers":        {world.ConnectionTimedOut, "595 Connection timed out", 30 * time.Second},
		"someone else is there": {world.CertificateFailed, "596 certificate verify failed", 0},
	}
	for name, test := range failures {
		story(t, name, simulated|secondNode, func(t *testing.T, s *server) {
			s.sim.world.BreakProxy(s.place.node2, test.failure)
			began := time.Now()
			got := s.do(http.MethodGet, "/nodes/"+s.place.node2+"/status")
			same(t, []any{test.want, 0}, []any{got.Status, len(got.Body)})
			same(t, test.after, time.Since(began))
			s.get("/nodes/" + s.place.node + "/status")
			s.sim.world.BreakProxy(s.place.node2, world.ProxyFailure{})
			s.get("/nodes/" + s.place.node2 + "/status")
		})
	}
	story(t, "an answer that takes too long is lost, what was asked is done", simulated|secondNode, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		path := "/nodes/" + s.place.node2 + "/qemu/" + itoa(id) + "/config"
		s.sim.world.BreakProxy(s.place.node2, world.AnswerTimedOut)
		got := s.do(http.MethodPut, path, "cores=3")
		must.Hold(t, got.Status == "596 Connection timed out" && len(got.Body) == 0, "%s, body %q", got.Status, got.Body)
		s.sim.world.BreakProxy(s.place.node2, world.ProxyFailure{})
		same(t, "3", text(object(t, s.get(path))["cores"]))
	})
	story(t, "pveproxy alone can do little", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		s.sim.world.SetDaemon(s.place.node, false)
		same(t, "595 Connection refused", s.do(http.MethodGet, s.vm(id, "config")).Status)
		s.get("/cluster/resources")
		s.sim.world.SetDaemon(s.place.node, true)
	})
}

// login gets a ticket of a person and the header that goes with it.
func (s *server) login(password string) (ticket, csrf string) {
	s.t.Helper()
	s.sim.world.SetPassword("contract@pve", "correct-horse")
	got := s.as("", http.MethodPost, "/access/ticket", "username=contract@pve", "password="+password)
	if got.Code != http.StatusOK {
		s.t.Fatal(got.Status)
	}
	data := object(s.t, got.Data)
	return text(data["ticket"]), text(data["CSRFPreventionToken"])
}

func (s *server) withTicket(method, path, ticket, csrf string, body string) reply {
	s.t.Helper()
	req := s.request("", method, path, "application/x-www-form-urlencoded", []byte(body))
	req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: url.QueryEscape(ticket)})
	if csrf != "" {
		req.Header.Set("CSRFPreventionToken", csrf)
	}
	return s.send(req)
}

// TestTickets: how people and clients with passwords authenticate.
func TestTickets(t *testing.T) {
	story(t, "a wrong password", 0, func(t *testing.T, s *server) {
		began := time.Now()
		got := s.as("", http.MethodPost, "/access/ticket", "username=nobody@pve", "password=wrong")
		must.Hold(t, got.Code == http.StatusUnauthorized && (s.sim == nil || got.Status == "401 authentication failure"),
			"%v", got.Status)
		wantTook(t, began, 2900*time.Millisecond, 0)
	})
	story(t, "reads need only the cookie, changes the header too", simulated, func(t *testing.T, s *server) {
		ticket, csrf := s.login("correct-horse")
		id := s.newVM()
		same(t, http.StatusOK, s.withTicket(http.MethodGet, s.vm(id, "config"), ticket, "", "").Code)
		for header, want := range map[string]string{
			"": "401 Permission denied - invalid csrf token", ticket: "401 Permission denied - invalid csrf token", csrf: "200 OK",
		} {
			same(t, want, s.withTicket(http.MethodPut, s.vm(id, "config"), ticket, header, "cores=2").Status)
		}
	})
	story(t, "uploads need no header", simulated, func(t *testing.T, s *server) {
		ticket, _ := s.login("correct-horse")
		req := s.request("", http.MethodPost, "/nodes/pve1/storage/local/upload", multipart, form(iso(), file(s.isoName(), "bytes")))
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: ticket})
		wantExit(t, s.wait(s.send(req)), "OK")
	})
	story(t, "last two hours, and buy the next one", simulated, func(t *testing.T, s *server) {
		ticket, _ := s.login("correct-horse")
		time.Sleep(2 * time.Hour)
		next, _ := s.login(ticket)
		time.Sleep(time.Second)
		same(t, "401 permission denied - invalid PVE ticket", s.withTicket(http.MethodGet, "/version", ticket, "", "").Status)
		same(t, "200 OK", s.withTicket(http.MethodGet, "/version", next, "", "").Status)
	})
}

// unknownUPID is a valid UPID of no task.
func unknownUPID(node string) string {
	return "UPID:" + node + ":00000001:00000001:00000001:qmstart:100:nobody@pve:"
}

func taskPath(node, upid string) string { return "/nodes/" + node + "/tasks/" + escape(upid) }

// begin starts a task that takes a while: the shutdown of a VM without an operating system.
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
		wantMatch(t, want, upid)
		user, name, _ := strings.Cut(token, "!")
		status := object(t, s.get(taskPath(s.place.node, upid)+"/status"))
		got := []any{status["upid"], status["node"], status["type"], status["id"], status["user"], status["tokenid"], status["status"], status["exitstatus"]}
		same(t, []any{upid, s.place.node, "qmstop", itoa(id), user, name, "stopped", "OK"}, got)
	})
	story(t, "runs, and has no exit status until it has ended", 0, func(t *testing.T, s *server) {
		upid := s.begin(s.newVM(), "timeout=5")
		status := object(t, s.get(taskPath(s.place.node, upid)+"/status"))
		must.Hold(t, status["status"] == "running" && status["exitstatus"] == nil, "%v", status)
		s.wait(reply{Data: upid})
	})
	story(t, "can be followed through any node", secondNode, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		e := s.task(http.MethodPost, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/status/stop")
		must.Hold(t, e.Exit == "OK" && strings.HasPrefix(e.UPID, "UPID:"+s.place.node2+":"), "%+v", e)
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
		must.Contain(t, "what was said", string(r.Body), fmt.Sprintf(`"total":%d`, len(e.Log)))
	})
	story(t, "ends with how the task ended", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		if e := s.taskOK(http.MethodPost, s.vm(id, "status/stop")); e.Log[len(e.Log)-1] != "TASK OK" {
			t.Errorf("%q", e.Log)
		}
		s.start(id)
		e := s.task(http.MethodPost, s.vm(id, "status/start"))
		same(t, "TASK ERROR: "+e.Exit, e.Log[len(e.Log)-1])
	})
	story(t, "of no task is a line that says so", 0, func(t *testing.T, s *server) {
		rows := list(t, s.get(taskPath(s.place.node, unknownUPID(s.place.node))+"/log"))
		must.Hold(t, len(rows) == 1 && strings.HasPrefix(text(object(t, rows[0])["t"]), "unable to open file - "), "%v", rows)
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
		s.wantForbidden(http.MethodDelete, taskPath(s.place.node, upid), " (/nodes/"+s.place.node+", Sys.Modify)")
		for _, what := range []string{"/status", "/log"} {
			s.wantForbidden(http.MethodGet, taskPath(s.place.node, upid)+what, " (/nodes/"+s.place.node+", Sys.Audit)")
		}
		same(t, 0, len(list(t, s.poor(http.MethodGet, "/nodes/"+s.place.node+"/tasks").Data)))
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
		r := s.do(http.MethodDelete, taskPath(s.place.node, upid))
		must.Hold(t, r.Status == "200 OK" && r.Data == nil, "%s %v", r.Status, r.Data)
		must.Contain(t, "what was said", s.wait(reply{Data: upid}).Exit, "received interrupt")
		s.wantStatus(id, "running")
	})
	story(t, "is fine with one that has ended", 0, func(t *testing.T, s *server) {
		upid := s.taskOK(http.MethodPost, s.vm(s.newVM(), "status/stop")).UPID
		same(t, "200 OK", s.do(http.MethodDelete, taskPath(s.place.node, upid)).Status)
	})
	story(t, "kill -9 leaves no word of why", simulated, func(t *testing.T, s *server) {
		upid := s.begin(s.newVM())
		s.sim.world.KillTask(upid)
		same(t, "unexpected status", s.wait(reply{Data: upid}).Exit)
	})
	story(t, "a reboot of its node does too", simulated, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		upid := text(s.do(http.MethodPost, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/status/start").Data)
		s.sim.world.RebootHost(s.place.node2, time.Minute)
		same(t, "unexpected status", s.wait(reply{Data: upid}).Exit)
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
		wantTook(t, began, 3*time.Second, 0)
		s.wantStatus(id, "running")
	})
	story(t, "shutdown with force pulls the plug", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.wait(reply{Data: s.begin(id, "timeout=3", "forceStop=1")}).Exit
		must.Hold(t, got == "OK" || strings.HasPrefix(got, "WARNINGS: "), "%v", got)
		s.wantStatus(id, "stopped")
	})
	story(t, "a VM that has failed still counts as running", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.sim.world.SetQMP(id, "internal-error")
		got := object(t, s.get(s.vm(id, "status/current")))
		same(t, []any{"running", "internal-error"}, []any{got["status"], got["qmpstatus"]})
	})
}

// simulator is a Proxmox cluster of three nodes, with fault injection.
type simulator struct {
	world    *world.World
	recorder *record.Recorder
	network  *network.Network
	requests *apidoctest.Requests
}

// wrong says that the test makes recast's client send an invalid parameter on purpose.
func (s *server) wrong(param string) {
	if s.sim != nil {
		s.sim.requests.Wrong(param)
	}
}

const (
	simToken = "contract@pve!suite"
	simPoor  = "contract@pve!poor"
	secret   = "5ec0ffee-c0de-4000-8000-000000000001"
)

// role is the role of the suite's token: what recast needs to roll by recreate, as in docs/notes/permissions.md, and
// nothing else. Tests request further privileges with holds.
func role() []string {
	var all []string
	for _, g := range documented("recreate") {
		all = append(all, g.privileges...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// granted is a role of permissions.md and the path that it is granted on.
type granted struct {
	role, path string
	privileges []string
}

var (
	permissions = sync.OnceValues(func() (string, error) {
		text, err := os.ReadFile("../../docs/notes/permissions.md")
		return string(text), err
	})
	modifies = regexp.MustCompile(`(?m)^pveum role modify (\S+) --append 1 --privs (\S+)$`)
	grants   = regexp.MustCompile(`(?m)^pveum acl modify (\S+) .*--roles (\S+)$`)
)

// documented are the commands for a strategy in permissions.md.
func documented(strategy string) []granted {
	text, err := permissions()
	if err != nil {
		panic(err)
	}
	_, section, _ := strings.Cut(text, "\n## To roll by "+strategy+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	privileges := map[string][]string{}
	for _, m := range modifies.FindAllStringSubmatch(section, -1) {
		privileges[m[1]] = strings.Split(m[2], ",")
	}
	var all []granted
	for _, m := range grants.FindAllStringSubmatch(section, -1) {
		all = append(all, granted{role: m[2], path: m[1], privileges: privileges[m[2]]})
	}
	return all
}

func newSimulated(t *testing.T) *server {
	t.Helper()
	w := world.New(world.Options{Cluster: "contract"})
	sim := &simulator{world: w, recorder: record.New(), network: network.Memory()}
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "import"}})
	w.AddStorage(world.Storage{ID: "data", Type: "dir", Content: []string{"images"}, Capacity: 100 << 30})
	w.AddStorage(world.Storage{ID: "nas", Type: "nfs", Shared: true, Content: []string{"images", "iso"}})
	w.AddRole("Contract", role()...)
	w.AddRole("DeletesISOs", append(role(), "Datastore.Allocate")...)
	w.AddPool("contract")
	for _, id := range []string{simToken, simPoor} {
		w.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	}
	w.Grant(world.ACL{Path: "/", Who: "contract@pve", Role: world.Administrator, Propagate: true})
	w.Grant(world.ACL{Path: "/", Who: simToken, Role: "Contract", Propagate: true})
	w.Grant(world.ACL{Path: "/storage/local", Who: simToken, Role: "DeletesISOs", Propagate: true})

	cert := apitest.NewCertificate(t, net.IPv4(127, 42, 9, 1), net.IPv4(127, 42, 9, 2), net.IPv4(127, 42, 9, 3))
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	var servers []*pveapi.Server
	for i, host := range []string{"pve1", "pve2", "pve3"} {
		w.AddHost(host)
		listener := must.Get(sim.network.Listen(fmt.Sprintf("127.42.9.%d:8006", i+1)))(t)
		api := pveapi.New(w, sim.recorder, host)
		api.Serve(listener, cert)
		servers = append(servers, api)
	}
	sim.requests = apidoctest.Check(t, sim.recorder)
	dialer := sim.network.Dialer()
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: pool}}
	s := &server{
		t: t, sim: sim, http: &http.Client{Transport: transport},
		place: place{
			endpoint: "https://127.42.9.1:8006", token: simToken + "=" + secret, poor: simPoor + "=" + secret,
			node: "pve1", node2: "pve2", storage: "data", isoStorage: "local", sharedStorage: "nas", bridge: "vmbr0", pool: "contract",
			first: 90000, last: 90099, taken: new(atomic.Int64),
		},
	}
	t.Cleanup(func() {
		s.removeAll()
		transport.CloseIdleConnections()
		w.Close()
		for _, api := range servers {
			must.Pass(t, api.Close())
		}
	})
	s.client = s.connect(s.trusting())
	return s
}

func (s *server) connect(o api.Options) *pve.Client {
	s.t.Helper()
	c := must.Get(pve.New(o))(s.t)
	s.t.Cleanup(c.Close)
	return c
}

// holds skips a test for which the token of a real server lacks a privilege. The simulator's token gets it.
func (s *server) holds(path string, wanted ...string) {
	s.t.Helper()
	for _, privilege := range wanted {
		if slices.Contains(s.privileges(path), privilege) {
			continue
		}
		if s.sim == nil {
			s.skipf("needs %s on %s", privilege, path)
		}
		s.sim.world.AddRole("Also"+privilege, append(role(), privilege)...)
		s.sim.world.Grant(world.ACL{Path: path, Who: simToken, Role: "Also" + privilege, Propagate: true})
	}
}

// lacks skips a test for which the token of a real server must not have a privilege. The simulator's token loses it.
func (s *server) lacks(path, privilege string) {
	s.t.Helper()
	if s.sim != nil {
		less := slices.DeleteFunc(role(), func(p string) bool { return p == privilege })
		s.sim.world.AddRole("Without"+privilege, less...)
		s.sim.world.Revoke(world.ACL{Path: "/", Who: simToken, Role: "Contract", Propagate: true})
		s.sim.world.Grant(world.ACL{Path: "/", Who: simToken, Role: "Without" + privilege, Propagate: true})
	}
	if slices.Contains(s.privileges(path), privilege) {
		s.skipf("needs a token without %s on %s", privilege, path)
	}
}

// without makes a token of the simulator's with the suite's privileges except one.
func (s *server) without(privilege string) (token string) {
	s.t.Helper()
	return s.only("/", slices.DeleteFunc(role(), func(p string) bool { return p == privilege })...)
}

// only makes a token of the simulator's with privileges at one path and below, and no others.
func (s *server) only(path string, privileges ...string) (token string) {
	s.t.Helper()
	token = "contract@pve!t" + strings.ReplaceAll(strings.Join(privileges, "-"), ".", "") + "=" + secret
	id, _, _ := strings.Cut(token, "=")
	s.sim.world.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	s.also(token, path, privileges...)
	return token
}

// also grants a token of the simulator's privileges at another path.
func (s *server) also(token, path string, privileges ...string) {
	id, _, _ := strings.Cut(token, "=")
	name := id + path
	s.sim.world.AddRole(name, privileges...)
	s.sim.world.Grant(world.ACL{Path: path, Who: id, Role: name, Propagate: true})
}

// taken counts the VMIDs used on the real server.
var taken atomic.Int64

// realPlace reads the real server's settings; false if the environment names none.
func realPlace(t *testing.T) (place, bool) {
	t.Helper()
	p := place{
		endpoint: strings.TrimSuffix(os.Getenv("PVE_ENDPOINT"), "/"), token: os.Getenv("PVE_TOKEN"), poor: os.Getenv("PVE_POOR_TOKEN"),
		node: os.Getenv("PVE_NODE"), node2: os.Getenv("PVE_NODE2"), storage: os.Getenv("PVE_STORAGE"), isoStorage: os.Getenv("PVE_ISO_STORAGE"),
		sharedStorage: os.Getenv("PVE_SHARED_STORAGE"), bridge: cmp.Or(os.Getenv("PVE_BRIDGE"), "vmbr0"), pool: os.Getenv("PVE_POOL"), taken: &taken,
	}
	if p.endpoint == "" {
		return p, false
	}
	for name, value := range map[string]string{
		"PVE_TOKEN": p.token, "PVE_NODE": p.node, "PVE_STORAGE": p.storage, "PVE_ISO_STORAGE": p.isoStorage,
	} {
		must.Be(t, value != "", "%s is not set; PVE_ENDPOINT alone is not enough", name)
	}
	vmids := cmp.Or(os.Getenv("PVE_VMIDS"), "90000-90099")
	n, err := fmt.Sscanf(vmids, "%d-%d", &p.first, &p.last)
	must.Be(t, n == 2 && err == nil && p.first >= 100 && p.last >= p.first, "PVE_VMIDS is %q, not a range such as 90000-90099", vmids)
	return p, true
}

// swept is the result of the check before the first test: nothing is made in a range with foreign VMs.
var swept struct {
	once    sync.Once
	done    bool
	alien   string       // foreign guests in the range
	volumes map[int]bool // VMIDs of the range without a VM, but with volumes
}

func newReal(t *testing.T, p place) *server {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: pinned(os.Getenv("PVE_FINGERPRINT")), TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 3 * time.Second}
	s := &server{t: t, place: p, http: &http.Client{Transport: transport, Timeout: 2 * time.Minute}}
	t.Cleanup(func() {
		s.removeAll()
		transport.CloseIdleConnections()
	})
	s.client = s.connect(s.trusting())
	swept.once.Do(s.sweep)
	must.Be(t, swept.done, "what is in PVE_VMIDS could not be read: the first failure says why")
	must.Be(t, swept.alien == "", "%s is in PVE_VMIDS, but these tests did not make it: give them a range of their own", swept.alien)
	return s
}

// pinned accepts only the certificate with that SHA-256 fingerprint; "" uses the system's authorities.
func pinned(fingerprint string) *tls.Config {
	if fingerprint == "" {
		return &tls.Config{}
	}
	want := strings.ToLower(strings.ReplaceAll(fingerprint, ":", ""))
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection verifies it
		VerifyConnection: func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if got := hex.EncodeToString(sum[:]); got != want {
				return errors.New("the server's certificate has the fingerprint " + got)
			}
			return nil
		},
	}
}

// isOurs says whether the tests or recast made a VM: the descriptions of parking VMs and
// claims contain their cluster, even if a test has damaged the record's beginning.
func (s *server) isOurs(node string, id int) bool {
	s.t.Helper()
	config := object(s.t, s.get("/nodes/"+node+"/qemu/"+itoa(id)+"/config"))
	description := text(config["description"])
	return strings.Contains(description, marker) || strings.Contains(description, `cluster":"`+exchangeCluster+`"`)
}

// sweep removes the VMs and ISOs of a killed run, unless the range contains a foreign guest. The origin of volumes
// without a VM is unknown: they are left alone, and their VMIDs are not used.
func (s *server) sweep() {
	s.t.Helper()
	left := s.left()
	if swept.alien == "" {
		for _, id := range left {
			s.t.Logf("remove VM %d, which a run before has left", id)
			s.remove(id)
		}
		s.sweepISOs()
		s.findVolumes()
	}
	swept.done = true
}

// left are our VMs in the range.
func (s *server) left() []int {
	s.t.Helper()
	var left []int
	for _, o := range s.rows("/cluster/resources", "type=vm") {
		var id int
		if _, err := fmt.Sscan(text(o["vmid"]), &id); err != nil || id < s.place.first || id > s.place.last {
			continue
		}
		if text(o["type"]) != "qemu" || !s.isOurs(text(o["node"]), id) {
			swept.alien = fmt.Sprintf("guest %d (%s)", id, text(o["name"]))
			return nil
		}
		left = append(left, id)
	}
	return left
}

func (s *server) sweepISOs() {
	s.t.Helper()
	if !slices.Contains(s.privileges("/storage/"+s.place.isoStorage), "Datastore.Allocate") {
		return
	}
	for _, row := range s.rows("/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/content") {
		_, name, _ := strings.Cut(text(row["volid"]), ":")
		if volid := s.place.isoStorage + ":" + name; strings.HasPrefix(name, "iso/"+isoPrefix) || strings.HasPrefix(name, "import/"+isoPrefix) {
			s.t.Logf("remove %s, which a run before has left", volid)
			s.removeISO(volid)
		}
	}
}

func (s *server) findVolumes() {
	s.t.Helper()
	swept.volumes = map[int]bool{}
	for _, storage := range []string{s.place.storage, s.place.sharedStorage} {
		if storage == "" {
			continue
		}
		for _, o := range s.rows("/nodes/" + s.place.node + "/storage/" + storage + "/content") {
			if id, err := strconv.Atoi(text(o["vmid"])); err == nil && id >= s.place.first && id <= s.place.last && !swept.volumes[id] {
				s.t.Logf("leave VMID %d alone: no VM has it, but %s is there", id, text(o["volid"]))
				swept.volumes[id] = true
			}
		}
	}
}
