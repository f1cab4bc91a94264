package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Install makes the machines, installs Talos on each from the image of its schematic
// (canonical YAML by its name in recast.yaml), and powers them on. An empty lab has none.
func (l *Lab) Install(ctx context.Context, schematics map[string]string) error {
	installers := map[string]string{}
	for name, schematic := range schematics {
		installer, err := l.register(ctx, schematic)
		if err != nil {
			return err
		}
		installers[name] = installer
	}
	if err := l.defineHolders(); err != nil {
		return fmt.Errorf("make data VMs: %w", err)
	}
	if l.o.Before != nil {
		if err := l.o.Before(l.World); err != nil {
			return err
		}
	}
	members := l.formEtcd()
	for _, n := range l.Nodes {
		if err := l.install(ctx, n, installers[n.Schematic], members[n.Name]); err != nil {
			return fmt.Errorf("install %s: %w", n.Name, err)
		}
	}
	for _, n := range l.Nodes {
		if err := l.World.PowerOn(n.VMID); err != nil {
			return fmt.Errorf("switch %s on: %w", n.Name, err)
		}
	}
	return nil
}

// documents are the configuration documents of a machine beside the main one, and the label of the volume with etcd's data
// on a control plane's persistent disk.
func (l *Lab) documents(n Node) (documents []string, label string) {
	label = "EPHEMERAL"
	switch {
	case n.ControlPlane && n.Persistent && l.o.EtcdVolume:
		label = "ETCD"
		documents = []string{n.onData(label) + "  minSize: 1GiB\n"}
	case n.ControlPlane && n.Persistent:
		documents = []string{n.onData(label)}
	case n.Persistent:
		documents = n.userVolume()
	}
	if l.o.NoDHCP {
		documents = append(documents, fmt.Sprintf("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: %s/%d\n", n.Addr, l.o.networkBits()))
	}
	return documents, label
}

// install makes one machine; member is a control plane's etcd data.
func (l *Lab) install(ctx context.Context, n Node, installer string, member talosapi.EtcdData) error {
	uki, err := l.pull(ctx, installer, "amd64")
	if err != nil {
		return err
	}
	if v, own := l.o.VMs[n.Name]; own {
		return l.installVM(n, v, installer, uki, member)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return err
	}
	m := talosapi.Machine{Hostname: n.Name, ControlPlane: n.ControlPlane, Installer: installer}
	if n.bus == "virtio" {
		m.InstallDisk = "/dev/vda"
	}
	elsewhere := n.ControlPlane && n.Persistent
	var label string
	m.Documents, label = l.documents(n)
	config, err := l.Talos.MachineConfig(m)
	if err != nil {
		return err
	}
	system, err := l.machines.Preinstalled(config, uki, elsewhere && !l.o.EtcdVolume)
	if err != nil {
		return err
	}
	content := map[string]*world.Media{}
	held, protect := "", func() {}
	if n.Persistent {
		disk := world.Protected{Serial: n.dataSerial(), Media: world.NewMedia(talosapi.DataDiskOf("u-data", n.filesystem, n.content("")))}
		if elsewhere {
			data, err := talosapi.WithEtcd(talosapi.DataDisk(label, nil), member)
			if err != nil {
				return err
			}
			disk.Media, disk.Identity = world.NewMedia(data), talosapi.Lasting
		}
		if disk.Held = n.Holder != 0; disk.Held {
			fresh := disk.Media.Bytes()
			if held, disk.Media, err = l.held(n); err != nil {
				return err
			}
			disk.Media.Write(fresh)
		} else {
			content[n.drive(1)] = disk.Media
		}
		protect = func() { l.World.Protect(disk) }
	}
	if n.ControlPlane && !elsewhere {
		if system, err = talosapi.WithEtcd(system, member); err != nil {
			return err
		}
	}
	var more []world.Protected
	for i := 2; i <= n.data; i++ {
		disk := world.Protected{Serial: n.moreSerial(i), Media: world.NewMedia(talosapi.DataDisk(fmt.Sprintf("u-data%d", i), n.content(fmt.Sprintf(" on disk %d", i))))}
		content[n.drive(i)], more = disk.Media, append(more, disk)
	}
	content[n.drive(0)] = world.NewMedia(system)
	if !n.seabios {
		content["efidisk0"] = world.NewMedia(talosapi.NVRAM(img))
	}
	if err := l.World.DefineVM(n.Host, n.VMID, n.config(held), content); err != nil {
		return err
	}
	protect()
	for _, disk := range more {
		l.World.Protect(disk)
	}
	return nil
}

// defineHolders makes the data VMs, one per host, that own the persistent disks of its nodes.
func (l *Lab) defineHolders() error {
	configs, hosts := map[int]map[string]string{}, map[int]string{}
	for i, n := range l.Nodes {
		if n.Holder == 0 || !n.Persistent {
			continue
		}
		if configs[n.Holder] == nil {
			configs[n.Holder] = map[string]string{
				"name": "data-" + n.Host, "memory": "16", "protection": "1", "description": "Holds disks of other VMs. Never runs.",
			}
		}
		configs[n.Holder][holderKey(i)] = DiskStorage + ":20" + n.serial(n.dataSerial())
		hosts[n.Holder] = n.Host
	}
	for id, config := range configs {
		if err := l.World.DefineVM(hosts[id], id, config, nil); err != nil {
			return err
		}
	}
	return nil
}

func holderKey(node int) string { return fmt.Sprintf("scsi%d", node) }

// held is a node's persistent disk as named in the configuration of its data VM.
func (l *Lab) held(n Node) (volid string, disk *world.Media, err error) {
	holder, err := l.World.LookupVM(n.Host, n.Holder)
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(l.Nodes, func(o Node) bool { return o.Name == n.Name })
	volid, _, _ = strings.Cut(holder.Config[holderKey(i)], ",")
	if disk = l.World.Media(volid, n.Host); disk == nil {
		return "", nil, fmt.Errorf("data VM %d has no disk of %s", n.Holder, n.Name)
	}
	return volid, disk, nil
}

// WaitReady waits until every node is Ready.
func (l *Lab) WaitReady(ctx context.Context) error {
	for {
		waiting := ""
		for _, n := range l.Nodes {
			node, err := l.Kube.Node(ctx, n.Name)
			if err != nil || !ready(node) {
				waiting = n.Name
			}
		}
		if waiting == "" {
			return nil
		}
		if err := l.delay(ctx, time.Second); err != nil {
			return errors.Join(fmt.Errorf("wait for %s", waiting), err)
		}
	}
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Disks is the SHA-256 of the protected content of every persistent disk, by serial.
func (l *Lab) Disks() map[string]string {
	out := map[string]string{}
	for _, d := range l.World.Persistent() {
		out[d.Serial] = d.SHA256
	}
	return out
}
