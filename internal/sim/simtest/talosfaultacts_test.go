package simtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

func breakImage(d talosapi.Defect) func(*talosScene) {
	return func(s *talosScene) { s.BreakImage(s.locked(s.rolls).SchematicID, d) }
}

// breakInstaller breaks one installer and what it installs.
func breakInstaller(d talosapi.Defect) func(*talosScene) {
	return func(s *talosScene) {
		published(s)
		s.BreakImage(s.locked(s.rolls).Installer, d)
	}
}

func mendInstaller(s *talosScene) { s.BreakImage(s.locked(s.rolls).Installer, talosapi.Sound) }

// recreated is the same build, rolled by recreate.
func recreated(s *talosScene) {
	s.Replace("recast.yaml", "strategy: in-place", "strategy: recreate")
	must(s.t, s.as(thirdRun).roll(s.only())(s.t.Context()))
}

// patient allows more time for an installation.
func patient(s *talosScene) { s.Replace("recast.yaml", "join: 3m", "join: 10m") }

func later(*talosScene) { time.Sleep(2 * time.Minute) }

func troubled(t talosapi.Trouble) func(*talosScene) {
	return func(s *talosScene) { must(s.t, s.Trouble(s.rolls, t)) }
}

func breakEtcd(f talosapi.EtcdFault, names ...string) func(*talosScene) {
	return func(s *talosScene) { s.breakEtcd(f, names...) }
}

// switchedOff is a machine whose VM a person has stopped.
func switchedOff(s *talosScene) { must(s.t, s.World.PowerOff(s.rolled().VMID)) }

func poweredOn(s *talosScene) { must(s.t, s.World.PowerOn(s.rolled().VMID)) }

func switchedOn(s *talosScene) {
	n := s.rolled()
	s.done(s.World.Start("root@pam", n.Host, n.VMID))
	later(s)
}

// restarted is a machine whose VM a person has reset.
func restarted(s *talosScene) {
	n := s.rolled()
	s.done(s.World.Reset("root@pam", n.Host, n.VMID))
}

// joinedAnew deletes the node's etcd data, as doctor advises too, and continues.
func joinedAnew(s *talosScene) {
	if said := problems(diagnosis(s.t, s.Client())); !slices.Contains(said, "Talos: etcd: cp2 is a learner: it does not vote yet") {
		s.t.Errorf("doctor says %q", said)
	}
	s.reset(s.rolls, "EPHEMERAL")
	must(s.t, s.as(secondRun).roll(s.only())(s.t.Context()))
}

func inTurn(acts ...func(*talosScene)) func(*talosScene) {
	return func(s *talosScene) {
		for _, act := range acts {
			act(s)
		}
	}
}

// swapISOs puts the control planes' image under the name of the workers'.
func swapISOs(s *talosScene) { s.SwapISOs() }

func published(s *talosScene) { must(s.t, s.Client().Publish(s.t.Context())) }

// newVersion changes the lock to another version of Talos.
func newVersion(s *talosScene) {
	s.Replace("recast.yaml", "version: "+s.o.TalosVersion, "version: "+sim.TalosVersion)
	_, err := s.Client().Lock(s.t.Context(), pipeline.LockOptions{Update: true})
	must(s.t, err)
}

// isoOf is the published boot ISO of the workers' image of a version.
func (s *talosScene) isoOf(version string) *world.Media {
	s.t.Helper()
	volumes, err := s.World.Volumes(sim.ISOStorage, "pve1")
	must(s.t, err)
	for _, v := range volumes {
		media := s.World.Media(v.Volid, "pve1")
		img, err := artefact.ReadISO(media.Bytes())
		if err == nil && img.TalosVersion == version && len(img.Extensions) > 1 {
			return media
		}
	}
	s.t.Fatalf("no ISO of %s among %+v", version, volumes)
	return nil
}

// oldISO is a storage on which the ISO of the new version has the old one's content.
func oldISO(s *talosScene) {
	published(s)
	newVersion(s)
	published(s)
	s.isoOf(sim.TalosVersion).Write(s.isoOf(s.o.TalosVersion).Bytes())
}

// freshISO removes the ISO that recast reports as wrong.
func freshISO(s *talosScene) {
	volumes, err := s.World.Volumes(sim.ISOStorage, "pve1")
	must(s.t, err)
	for _, v := range volumes {
		if strings.Contains(v.Volid, "-"+sim.TalosVersion+"-") {
			s.done(s.World.DeleteVolume("", "pve1", v.Volid))
		}
	}
	published(s)
}

// led redirects connections from one machine to another one.
func led(to string) func(*talosScene) {
	return func(s *talosScene) { s.lead(s.rolled().Addr.String(), to) }
}

// lead redirects connections to an address.
func (s *talosScene) lead(addr, to string) {
	s.route.Store(new(map[string]string{addr: s.Lab.node(to).Addr.String()}))
}

func straight(s *talosScene) { s.route.Store(nil) }

// certified makes machines' certificates valid for that address too.
func certified(addr string, machines ...string) func(*talosScene) {
	return func(s *talosScene) {
		for _, m := range machines {
			s.certify(m, addr)
		}
	}
}

func (l *Lab) certify(machine, addr string) {
	l.t.Helper()
	l.reconfigure(machine, func(config []byte) []byte {
		return bytes.Replace(config, []byte("certSANs: []"), []byte("certSANs: ["+addr+"]"), 1)
	})
}

// reconfigure changes a node's configuration as a person does, and reboots it.
func (l *Lab) reconfigure(node string, edit func([]byte) []byte) {
	l.t.Helper()
	config := l.configOf(node)
	edited := edit(bytes.Clone(config))
	if bytes.Equal(edited, config) {
		l.t.Fatalf("nothing of the configuration of %s is changed", node)
	}
	l.apply(node, edited)
}

// apply applies another configuration to a machine, and reboots it.
func (l *Lab) apply(node string, config []byte) {
	l.t.Helper()
	l.talosctl(node, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_STAGED})
		return errors.Join(err, c.Reboot(ctx))
	})
	time.Sleep(2 * time.Minute)
}

// renamed gives a node another's name.
func renamed(node, from, to string) func(*talosScene) {
	return func(s *talosScene) {
		s.reconfigure(node, func(config []byte) []byte {
			return bytes.ReplaceAll(config, []byte("hostname: "+from), []byte("hostname: "+to))
		})
	}
}

// expiring is a talosconfig whose certificate expires after life.
func expiring(life time.Duration) func(*talosScene) {
	return func(s *talosScene) {
		b := s.Talos.Secrets
		pair, err := secrets.NewAdminCertificateAndKey(time.Now().Add(-time.Hour), b.Certs.OS, role.MakeSet(role.Admin), life+time.Hour)
		must(s.t, err)
		s.keep("talosconfig")
		s.editTalosconfig(func(c *clientconfig.Context) {
			c.Crt, c.Key = base64.StdEncoding.EncodeToString(pair.Crt), base64.StdEncoding.EncodeToString(pair.Key)
		})
	}
}

func (s *talosScene) editTalosconfig(edit func(*clientconfig.Context)) {
	s.t.Helper()
	conf, err := clientconfig.FromBytes(s.Read("talosconfig"))
	must(s.t, err)
	edit(conf.Contexts[conf.Context])
	b, err := conf.Bytes()
	must(s.t, err)
	s.Write("talosconfig", b)
}

// virtual is an endpoint that moves between the control planes.
const virtual = "127.42.7.9"

func virtualEndpoint(s *talosScene) {
	certified(virtual, "cp2", "cp3")(s)
	s.keep("talosconfig")
	s.editTalosconfig(func(c *clientconfig.Context) { c.Endpoints = []string{virtual} })
	s.lead(virtual, "cp2")
}

// rerouted is where a connection of the roll ends.
func (s *talosScene) rerouted(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if routes := s.route.Load(); err == nil && routes != nil && (*routes)[host] != "" {
		return net.JoinHostPort((*routes)[host], port)
	}
	return addr
}

// alien attaches a disk on which Talos was once installed.
func alien(s *talosScene) {
	n := s.rolled()
	must(s.t, s.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Set: map[string]string{"scsi5": sim.DiskStorage + ":1,serial=alien"}}))
	vm, err := s.World.LookupVM(n.Host, n.VMID)
	must(s.t, err)
	volid, _, _ := strings.Cut(vm.Config["scsi5"], ",")
	s.World.Media(volid, n.Host).Write(artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{{Label: "META", UUID: "alien"}}}))
}

func unplugged(s *talosScene) {
	n := s.rolled()
	must(s.t, s.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Set: map[string]string{"protection": "0"}}))
	for _, key := range []string{"scsi5", "unused0"} {
		must(s.t, s.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Delete: []string{key}}))
	}
}

// installedBy installs that node's image beside the running system, as a person would.
func installedBy(of string) func(*talosScene) {
	return func(s *talosScene) { s.installBy(s.t, s.rolls, s.locked(of).Installer) }
}

func rebooted(s *talosScene) {
	s.talosctl(s.rolls, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(2 * time.Minute)
}
