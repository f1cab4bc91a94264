package contract

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// values is a form for recast's client.
func values(form ...string) map[string]string {
	out := map[string]string{}
	for _, f := range form {
		key, value, _ := strings.Cut(f, "=")
		out[key] = value
	}
	delete(out, "vmid")
	return out
}

// read reads a VM with recast's client.
func (s *server) read(id int) cluster.VM {
	s.t.Helper()
	vm := must.Get(s.client.VM(s.t.Context(), cluster.VMID(id)))(s.t)
	return vm
}

// TestClientErrors: recast's client recognizes Proxmox's refusals.
func TestClientErrors(t *testing.T) {
	story(t, "a VM that there is not", 0, func(t *testing.T, s *server) {
		if _, err := s.client.VM(t.Context(), cluster.VMID(s.freeID())); !errors.Is(err, cluster.ErrNotFound) {
			t.Error(err)
		}
	})
	story(t, "a VMID that is taken", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		wantError(t, cluster.ErrExists, s.client.CreateVM(t.Context(), s.place.node, cluster.VMID(id), values(marked(id)...)))
	})
	story(t, "a configuration that is another one", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.place.storage+":1"), s.newVM()
		vm := s.read(id)
		vm.Digest = strings.Repeat("0", 40)
		for name, err := range map[string]error{
			"at once":     s.client.SetConfig(t.Context(), vm, map[string]string{"onboot": "1"}, nil),
			"by a worker": s.client.SetConfig(t.Context(), vm, map[string]string{"ide2": "none,media=cdrom"}, nil),
			"free":        s.client.FreeDisk(t.Context(), vm, "scsi0"),
			"move":        s.client.MoveDisk(t.Context(), vm, "scsi0", cluster.VMID(other), "scsi0"),
		} {
			if !errors.Is(err, cluster.ErrChanged) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	story(t, "parameters, one by one", 0, func(t *testing.T, s *server) {
		s.wrong("nosuch")
		err := s.client.SetConfig(t.Context(), s.read(s.newVM()), map[string]string{"nosuch": "1"}, nil)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Status != http.StatusBadRequest || e.Params["nosuch"] != unknown || !strings.HasPrefix(e.Reason+e.Message, "Parameter verification failed.") {
			t.Errorf("%+v", err)
		}
	})
	story(t, "a task that fails, with its log", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		volid := s.place.isoStorage + ":iso/recast-contract-nosuch.iso"
		err := s.client.CreateVM(t.Context(), s.place.node, cluster.VMID(id), values(marked(id, "ide2="+volid+",media=cdrom")...))
		e, ok := errors.AsType[*api.TaskError](err)
		if !ok || e.UPID.Type != "qmcreate" || e.UPID.ID != itoa(id) || !strings.Contains(e.Exit, "volume '"+volid+"' does not exist") {
			t.Errorf("%v", err)
		}
	})
}

// TestClientIsNotLetIn: recast's client reports a failed authentication without an additional delay.
func TestClientIsNotLetIn(t *testing.T) {
	story(t, "with a wrong secret", 0, func(t *testing.T, s *server) {
		id, _, _ := strings.Cut(s.place.token, "=")
		o := s.trusting()
		o.Token = cluster.Secret(id + "=" + secret[:35] + "f")
		began := time.Now()
		err := s.asking(o)
		e, ok := errors.AsType[*api.Error](err)
		if took := time.Since(began); !ok || e.Status != http.StatusUnauthorized || took < 2900*time.Millisecond || took > 6*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
	story(t, "by a certificate that is not the pinned one", 0, func(t *testing.T, s *server) {
		o := s.trusting()
		o.Fingerprint = strings.Repeat("AB:", 31) + "AB"
		if _, ok := errors.AsType[*api.FingerprintError](s.asking(o)); !ok {
			t.Error("it was let in")
		}
	})
}

// trusting is a client's options to reach and trust the server.
func (s *server) trusting() api.Options {
	o := api.Options{Endpoints: []string{s.place.endpoint}, Token: cluster.Secret(s.place.token), Fingerprint: os.Getenv("PVE_FINGERPRINT")}
	if s.sim != nil {
		o.Fingerprint, o.RootCAs, o.Dial = "", s.http.Transport.(*http.Transport).TLSClientConfig.RootCAs, s.sim.network.Dialer().DialContext
	}
	return o
}

// asking reads something with a separate client.
func (s *server) asking(o api.Options) error {
	s.t.Helper()
	_, err := s.connect(o).Quorate(s.t.Context())
	return err
}

// change is one kind of recast's changes.
type change struct {
	prepare func(s *server) (id int)
	do      func(s *server, c *pve.Client, id int) error
	done    func(s *server, id int) (got any)
	want    any
	again   bool // it may be retried
}

func changes() map[string]change {
	to := 0 // the VM that gets the disk
	disk := func(s *server) int { return s.newVM("scsi1=" + s.place.storage + ":1,serial=a") }
	return map[string]change{
		"create": {
			prepare: (*server).freeID,
			do: func(s *server, c *pve.Client, id int) error {
				return c.CreateVM(s.t.Context(), s.place.node, cluster.VMID(id), values(marked(id, "tags=b;a", "scsi1="+s.place.storage+":1,serial=a,discard=on")...))
			},
			done: func(s *server, id int) any { return strings.Contains(s.config(id)["scsi1"], "serial=a") }, want: true, again: true,
		},
		"set": {
			prepare: func(s *server) int { return s.newVM("agent=1") },
			do: func(s *server, c *pve.Client, id int) error {
				return c.SetConfig(s.t.Context(), s.read(id), map[string]string{"onboot": "1", "description": marker + "\nchanged\n"}, []string{"agent"})
			},
			done: func(s *server, id int) any { return s.config(id)["onboot"] }, want: "1", again: true,
		},
		"set a drive": {
			prepare: disk,
			do: func(s *server, c *pve.Client, id int) error {
				return c.SetConfig(s.t.Context(), s.read(id), map[string]string{"ide2": "none,media=cdrom", "scsi2": s.place.storage + ":1,serial=b,discard=on"}, nil)
			},
			done: func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 2, again: true,
		},
		"free a disk": {
			prepare: disk,
			do:      func(s *server, c *pve.Client, id int) error { return c.FreeDisk(s.t.Context(), s.read(id), "scsi1") },
			done:    func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0, again: true,
		},
		"free a detached disk": {
			prepare: func(s *server) int {
				id := disk(s)
				s.put(s.vm(id, "config"), "delete=scsi1")
				return id
			},
			do:   func(s *server, c *pve.Client, id int) error { return c.FreeDisk(s.t.Context(), s.read(id), "unused0") },
			done: func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0, again: true,
		},
		"move a disk": {
			prepare: func(s *server) int {
				to = s.newVM()
				return disk(s)
			},
			do: func(s *server, c *pve.Client, id int) error {
				return c.MoveDisk(s.t.Context(), s.read(id), "scsi1", cluster.VMID(to), "scsi4")
			},
			done: func(s *server, _ int) any { return strings.Contains(s.config(to)["scsi4"], "serial=a") }, want: true,
		},
		"delete": {
			prepare: disk,
			do:      func(s *server, c *pve.Client, id int) error { return c.DeleteVM(s.t.Context(), s.read(id)) },
			done:    func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0,
		},
		"start": {
			prepare: func(s *server) int { return s.newVM() },
			do:      func(s *server, c *pve.Client, id int) error { return c.Start(s.t.Context(), s.read(id)) },
			done: func(s *server, id int) any {
				return object(s.t, s.get(s.vm(id, "status/current")))["status"]
			},
			want: "running",
		},
	}
}

// TestClientLosesAnswers: every answer to a change by recast's client is lost: the client
// detects that the change was made.
func TestClientLosesAnswers(t *testing.T) {
	for name, test := range changes() {
		story(t, name, 0, func(t *testing.T, s *server) {
			id := test.prepare(s)
			px, lost := s.losing(false)
			must.Do(t, test.do(s, px, id))
			same(t, test.want, test.done(s, id))
			same(t, int32(1), lost.Load())
		})
	}
}

// TestClientLosesChanges: a change does not arrive. One with a digest, or for a new VMID,
// is retried; for any other the result is an error that says that the outcome is unknown.
func TestClientLosesChanges(t *testing.T) {
	for _, name := range []string{"create", "set a drive", "delete"} {
		test := changes()[name]
		story(t, name, 0, func(t *testing.T, s *server) {
			id := test.prepare(s)
			px, _ := s.losing(true)
			err := test.do(s, px, id)
			if test.again != (err == nil) || !test.again != errors.Is(err, cluster.ErrLostAnswer) {
				t.Errorf("error is %v", err)
			}
			if got := test.done(s, id); cmp.Equal(test.want, got) != test.again {
				t.Errorf("%v; error %v", got, err)
			}
		})
	}
}

// losing is a recast client that loses the first answer to a change; before it arrives, the change itself. The client
// sees no reason phrases, as behind proxies that use HTTP/2.
func (s *server) losing(before bool) (px *pve.Client, lost *atomic.Int32) {
	s.t.Helper()
	lost = new(atomic.Int32)
	o := s.trusting()
	o.Wrap = func(inner http.RoundTripper) http.RoundTripper {
		return trip(func(req *http.Request) (*http.Response, error) {
			loses := req.Method != http.MethodGet && lost.CompareAndSwap(0, 1)
			if loses && before {
				httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{}) // it was on its way
				return nil, io.ErrUnexpectedEOF
			}
			resp, err := inner.RoundTrip(req)
			if err == nil && loses {
				_, err = io.Copy(io.Discard, resp.Body)
				return nil, errors.Join(io.ErrUnexpectedEOF, err, resp.Body.Close())
			}
			if err == nil {
				resp.Status = strconv.Itoa(resp.StatusCode)
			}
			return resp, err
		})
	}
	return s.connect(o), lost
}

// trip is a way to the server.
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// TestPermissions: /access/permissions, on which doctor relies.
func TestPermissions(t *testing.T) {
	story(t, "a path that does not exist has what comes from above", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		for _, path := range []string{"/vms/" + itoa(id), "/storage/nosuch"} {
			answer := object(t, s.get("/access/permissions", "path="+path))
			held, there := answer[path]
			if len(answer) != 1 || !there {
				t.Fatalf("asked about %s: %v", path, answer)
			}
			for privilege, propagates := range object(t, held) {
				if p := text(propagates); p != "0" && p != "1" {
					t.Errorf("%s at %s is %v, neither 0 nor 1", privilege, path, propagates)
				}
			}
		}
	})
	story(t, "a token with nothing is shown that, and no one else's", poorToken, func(t *testing.T, s *server) {
		for form, want := range map[string]any{"path=/vms": map[string]any{"/vms": map[string]any{}}, "": map[string]any{}} {
			r := s.poor(http.MethodGet, "/access/permissions?"+form)
			same(t, http.StatusOK, r.Code)
			same(t, want, r.Data)
		}
	})
	story(t, "the state of the cluster is not shown without Sys.Audit", poorToken, func(t *testing.T, s *server) {
		at := "/nodes/" + s.place.node
		for path, want := range map[string]int{
			"/cluster/status": http.StatusForbidden, at + "/time": http.StatusForbidden,
			"/version": http.StatusOK, "/nodes": http.StatusOK, at + "/version": http.StatusOK, // everybody may see them
		} {
			if r := s.poor(http.MethodGet, path); r.Code != want {
				t.Errorf("GET %s: %s", path, r.Status)
			}
		}
	})
}

// TestUserPermissions: the permissions of a token's user, which are shown with Sys.Audit on /access.
func TestUserPermissions(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		audits := slices.Contains(s.privileges("/access"), "Sys.Audit")
		standing := must.Get(s.client.Standing(t.Context(), []string{"/vms"}))(t)
		at := standing["/vms"]
		same(t, audits, at.Whole)
		for privilege := range at.Token {
			if _, has := at.User[privilege]; at.Whole && !has {
				t.Errorf("the token has %s on /vms, its user has not", privilege)
			}
		}
	})
}

// TestDoctor is the part of recast doctor that needs no Talos, for the recreation of a VM of these tests.
func TestDoctor(t *testing.T) {
	story(t, "a token with nothing lacks all of it", poorToken, func(t *testing.T, s *server) {
		needs := survey.NeedsToRoll([]string{s.place.isoStorage}, []string{s.place.node}, cluster.Recreate)
		missing := must.Get(needs.Missing(t.Context(), s.poorClient()))(t)
		same(t, len(needs), len(missing.Lacks))
	})
	story(t, "what a recreate takes is compared with what the token has", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "scsi1="+s.place.storage+":1,serial=data", "net0=virtio,bridge="+s.place.bridge)
		res := s.doctor(id)
		for _, n := range res.Needs {
			has := slices.Contains(s.privileges(n.Path), n.Privilege)
			if n.Granted && !has || !n.Granted && has && n.Path != "/vms" && n.Path != "/" { // there it must also propagate
				t.Errorf("%s on %s: granted %v, has %v", n.Privilege, n.Path, n.Granted, has)
			}
		}
		for _, want := range []string{
			"Sys.Audit on /", "VM.Allocate on /vms", "VM.Config.Disk on /vms", "Datastore.AllocateSpace on /storage/" + s.place.storage,
			"Datastore.AllocateTemplate on /storage/" + s.place.isoStorage, "SDN.Use on /sdn/zones/localnetwork/" + s.place.bridge,
		} {
			if !slices.ContainsFunc(res.Needs, func(n checkup.NeedStatus) bool { return n.Privilege+" on "+n.Path == want }) {
				t.Errorf("%s is not said to be needed", want)
			}
		}
		if major, _, _ := strings.Cut(res.Version, "."); major != "8" && major != "9" {
			t.Errorf("version %q", res.Version)
		}
	})
	story(t, "nothing but what the token lacks is in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "net0=virtio,bridge="+s.place.bridge)
		for _, c := range s.doctor(id).Checks {
			if c.State == checkup.Problem && !strings.HasPrefix(c.What, "clock of ") && (c.Group == checkup.GroupProxmox || c.Group == checkup.GroupStorage) {
				t.Errorf("%s: %s: %s", c.Group, c.What, c.Seen)
			}
		}
	})
	story(t, "a VM's protection is not in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "protection=1")
		against := s.doctor(id).Nodes[0].Against[cluster.Recreate]
		if slices.ContainsFunc(against, func(r string) bool { return strings.Contains(r, "protect") }) {
			t.Errorf("against recreate: %q", against)
		}
	})
}

// doctor checks a project whose only node is that VM.
func (s *server) doctor(id int) checkup.Result {
	s.t.Helper()
	c := &config.Config{
		Cluster: "contract", Dir: s.t.TempDir(), Talos: config.Talos{Version: "v1.13.9"},
		Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: s.place.last, Last: s.place.last}},
		Nodes:   []config.Node{{Name: "n1", Schematic: "default", VMID: id, Strategy: "recreate"}},
	}
	c.Images.ISO = config.ISO{Storage: []string{s.place.isoStorage}, Delivery: "auto"}
	c.Roll.MaxUnavailable.PerHost = 1
	absent := fault.Configf("there is none here")
	return checkup.Run(s.t.Context(), pipeline.Project{Config: c}, checkup.Sources{
		Proxmox: s.client, Endpoints: []checkup.Endpoint{{URL: s.place.endpoint, Hosts: s.client.Hosts}},
		ErrTalos: absent, ErrKube: absent, ErrImages: absent,
	})
}
