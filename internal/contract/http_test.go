package contract

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

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
			if got.Code != http.StatusUnauthorized || len(got.Body) > 0 {
				t.Errorf("%s, body %q", got.Status, got.Body)
			}
			if s.sim != nil && got.Status != test.want {
				t.Errorf("%s, want %s", got.Status, test.want)
			}
			if took := time.Since(began); took < 2900*time.Millisecond || took > 10*time.Second {
				t.Errorf("after %v", took)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	story(t, "of parameters are listed one by one, and in words", 0, func(t *testing.T, s *server) {
		got := s.do(http.MethodGet, "/cluster/resources", "nosuch=1")
		wantRefusal(t, got, refused, map[string]string{"nosuch": unknown})
		if got.Message != "Parameter verification failed.\n" || got.Data != nil {
			t.Errorf("%s", got.Body)
		}
	})
	story(t, "403 comes before anything is looked up", poorToken, func(t *testing.T, s *server) {
		id := s.freeID()
		for _, path := range []string{s.vm(id, "config"), s.vm(id, "status/current"), s.vm(id, "pending")} {
			wantRefusal(t, s.poor(http.MethodGet, path), fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Audit)", id), nil)
		}
		wantRefusal(t, s.poor(http.MethodGet, "/nodes/"+s.place.node+"/status", "nosuch=1"), "403 Permission check failed (/nodes/"+s.place.node+", Sys.Audit)", nil)
		wantRefusal(t, s.poor(http.MethodGet, "/nodes/nosuch/status"), "403 Permission check failed (/nodes/nosuch, Sys.Audit)", nil)
	})
	story(t, "a VM is not there through another node", secondNode, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.do(http.MethodGet, "/nodes/"+s.place.node2+"/qemu/"+itoa(id)+"/config")
		wantRefusal(t, got, fmt.Sprintf("500 Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.place.node2, id), nil)
	})
	story(t, "no such path, or method of it, is a 501, no such node a name that does not resolve", 0, func(t *testing.T, s *server) {
		if got := s.do(http.MethodGet, "/nodes/nosuch/qemu").Status; !strings.HasPrefix(got, "500 hostname lookup 'nosuch' failed") {
			t.Error(got)
		}
		wantRefusal(t, s.do(http.MethodGet, "/nosuch"), "501 Method 'GET /nosuch' not implemented", nil)
		wantRefusal(t, s.do(http.MethodPut, "/version"), "501 Method 'PUT /version' not implemented", nil)
		wantRefusal(t, s.do(http.MethodPatch, "/version"), "501 method 'PATCH' not available", nil)
	})
	story(t, "some calls want a person", 0, func(t *testing.T, s *server) {
		got := s.do(http.MethodPut, "/access/password", "userid=nobody@pve", "password=correct-horse")
		if got.Code != http.StatusForbidden || !strings.Contains(got.Status, "not available with API token, need proper ticket") {
			t.Error(got.Status)
		}
	})
	story(t, "a storage that is not there", 0, func(t *testing.T, s *server) {
		s.holds("/storage/nosuch", "Datastore.Audit")
		wantRefusal(t, s.do(http.MethodGet, "/nodes/"+s.place.node+"/storage/nosuch/content"), "500 storage 'nosuch' does not exist", nil)
		wantRefusal(t, s.do(http.MethodGet, "/nodes/"+s.place.node+"/storage/nosuch/status"), refused, map[string]string{"storage": "No such storage."})
	})
}

func TestBodies(t *testing.T) {
	story(t, "may be JSON", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		got := s.raw(http.MethodPut, s.vm(id, "config"), "application/json", []byte(`{"onboot":1,"cores":2,"memory":"96","tags":"b;a"}`))
		if got.Status != "200 OK" {
			t.Fatal(got.Status, got.Errors)
		}
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
		if err == nil && got.Code != http.StatusNotImplemented {
			t.Error(got.Status)
		}
		if s.config(id)["description"] == strings.Repeat("x", 600<<10) {
			t.Error("it was taken")
		}
	})
	story(t, "do not belong to a GET", 0, func(t *testing.T, s *server) {
		got := s.raw(http.MethodGet, "/version", "application/json", []byte(`{}`))
		wantPlain(t, got, "501 Unexpected content for method 'GET'")
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
			if got.Status != test.want || len(got.Body) > 0 {
				t.Errorf("%s, body %q; want %s", got.Status, got.Body, test.want)
			}
			if took := time.Since(began); took != test.after {
				t.Errorf("after %v, want %v", took, test.after)
			}
			s.get("/nodes/" + s.place.node + "/status")
			s.sim.world.BreakProxy(s.place.node2, world.ProxyFailure{})
			s.get("/nodes/" + s.place.node2 + "/status")
		})
	}
	story(t, "an answer that takes too long is lost, what was asked is done", simulated|secondNode, func(t *testing.T, s *server) {
		id := s.newVMOn(s.place.node2)
		path := "/nodes/" + s.place.node2 + "/qemu/" + itoa(id) + "/config"
		s.sim.world.BreakProxy(s.place.node2, world.AnswerTimedOut)
		if got := s.do(http.MethodPut, path, "cores=3"); got.Status != "596 Connection timed out" || len(got.Body) > 0 {
			t.Errorf("%s, body %q", got.Status, got.Body)
		}
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
		if got.Code != http.StatusUnauthorized || s.sim != nil && got.Status != "401 authentication failure" {
			t.Error(got.Status)
		}
		if took := time.Since(began); took < 2900*time.Millisecond {
			t.Errorf("after %v", took)
		}
	})
	story(t, "reads need only the cookie, changes the header too", simulated, func(t *testing.T, s *server) {
		ticket, csrf := s.login("correct-horse")
		id := s.newVM()
		if got := s.withTicket(http.MethodGet, s.vm(id, "config"), ticket, "", ""); got.Code != http.StatusOK {
			t.Error(got.Status)
		}
		for header, want := range map[string]string{
			"": "401 Permission denied - invalid csrf token", ticket: "401 Permission denied - invalid csrf token", csrf: "200 OK",
		} {
			if got := s.withTicket(http.MethodPut, s.vm(id, "config"), ticket, header, "cores=2"); got.Status != want {
				t.Errorf("%s, want %s", got.Status, want)
			}
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
