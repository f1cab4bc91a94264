package contract

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
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
	vm, err := s.client.VM(s.t.Context(), cluster.VMID(id))
	must(s.t, err)
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
		if err := s.client.CreateVM(t.Context(), s.place.node, cluster.VMID(id), values(marked(id)...)); !errors.Is(err, cluster.ErrExists) {
			t.Error(err)
		}
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

// TestClientIsNotLetIn: recast's client reports a failed authentication without an
// additional delay.
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
			way := &lossy{s: s}
			must(t, test.do(s, way.client(), id))
			if diff := cmp.Diff(test.want, test.done(s, id)); diff != "" || way.lost.Load() != 1 {
				t.Errorf("%d answers lost; %s", way.lost.Load(), diff)
			}
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
			way := &lossy{s: s, before: true}
			err := test.do(s, way.client(), id)
			if test.again != (err == nil) || !test.again != errors.Is(err, cluster.ErrLostAnswer) {
				t.Errorf("error is %v", err)
			}
			if got := test.done(s, id); cmp.Equal(test.want, got) != test.again {
				t.Errorf("%v; error %v", got, err)
			}
		})
	}
}
