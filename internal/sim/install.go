package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Install makes the machines, each with Talos installed from the image of its
// schematic (canonical YAML by its name in recast.yaml), and switches them on.
func (l *Lab) Install(ctx context.Context, schematics map[string]string) error {
	installers := map[string]string{}
	for name, schematic := range schematics {
		installer, err := l.register(ctx, schematic)
		if err != nil {
			return err
		}
		installers[name] = installer
	}
	for _, n := range l.Nodes {
		if err := l.install(ctx, n, installers[n.Schematic]); err != nil {
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

func (l *Lab) install(ctx context.Context, n Node, installer string) error {
	img, err := l.pull(ctx, installer, "amd64")
	if err != nil {
		return err
	}
	config, err := l.Talos.MachineConfig(talosapi.Machine{
		Hostname: n.Name, ControlPlane: n.ControlPlane, Installer: installer, InstallSerial: "sys-" + n.Name,
	})
	if err != nil {
		return err
	}
	system, err := talosapi.Preinstalled(config, img, false)
	if err != nil {
		return err
	}
	content := map[string]*world.Media{"scsi0": world.NewMedia(system)}
	if !n.ControlPlane {
		data := world.NewMedia(talosapi.DataDisk("u-data", n.data()))
		content["scsi1"] = data
		l.World.Protect(world.Protected{Serial: n.dataSerial(), Media: data})
	}
	return l.World.DefineVM(n.Host, n.VMID, n.config(), content)
}

// WaitReady waits until Kubernetes calls every node Ready.
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

// Disks is the SHA-256 of every persistent disk's bytes, by serial.
func (l *Lab) Disks() map[string]string {
	out := map[string]string{}
	for _, d := range l.World.Persistent() {
		out[d.Serial] = d.SHA256
	}
	return out
}
