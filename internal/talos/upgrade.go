package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// How long a machine may be silent while it pulls and installs an image.
const (
	pullSilence    = 5 * time.Minute
	installSilence = 5 * time.Minute
	// Before 1.14 Talos retries a pull for 20 minutes, and only the end of the pull says why it failed (PullTimeout
	// in internal/pkg/containers/image/image.go). The oldest API answers once, after the retries.
	patientPullSilence = 25 * time.Minute
	oldInstallTimeout  = 25 * time.Minute
	rebootTimeout      = 30 * time.Second
)

// containerd is the store into which talosctl pulls installers and from which it runs them: the store on EPHEMERAL,
// not the store in memory (cmd/talosctl/cmd/talos/image.go, containerdInstance).
func containerd() *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
}

// PullInstaller makes the machine fetch the installer. An interrupted pull may be repeated.
func (c *Client) PullInstaller(
	ctx context.Context, addr netip.Addr, uuid, installer string, say func(string),
) (supported bool, err error) {
	err = c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was pulled"); err != nil {
			return err
		}
		silence, err := lifecycleAPI(ctx, s)
		if supported = silence > 0; err != nil || !supported {
			return err
		}
		return pull(ctx, s, containerd(), installer, silence, wait, say)
	})
	return supported, err
}

func pull(ctx context.Context, s session, to *common.ContainerdInstance, image string, silence time.Duration, wait patience, say func(string)) error {
	wait(silence)
	p, named := &pullProgress{say: say, layers: map[string]pulledLayer{}}, false
	for m, err := range received(s.ImageClient.Pull(ctx, &machineapi.ImageServicePullRequest{Containerd: to, ImageRef: image})) {
		if err != nil {
			return fmt.Errorf("pull %s: %w", image, answer(err))
		}
		wait(silence)
		named = named || m.GetName() != "" // the last message has the image's name on the machine
		p.add(m.GetPullProgress())
	}
	if !named {
		return fmt.Errorf("pull %s: %w", image, answer(errors.New("the machine ended the pull without an image")))
	}
	return nil
}

// Install writes the installer's system beside the running system. The machine fetches the installer again if it no
// longer has the installer: Talos removes unreferenced images after an hour (controllers/cri/image_gc.go), and a
// drain may take longer. The error wraps cluster.ErrLostAnswer if the outcome is unknown, and cluster.ErrBusy if
// another installer is running.
func (c *Client) Install(ctx context.Context, addr netip.Addr, uuid, installer string, how cluster.Reboot, say func(string)) (reboots bool, err error) {
	err = c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was installed"); err != nil {
			return err
		}
		silence, err := lifecycleAPI(ctx, s)
		if err != nil {
			return err
		}
		if reboots = silence == 0; reboots {
			wait(oldInstallTimeout)
			return oldInstall(ctx, s, installer, how, say)
		}
		if err := pull(ctx, s, containerd(), installer, silence, wait, say); err != nil {
			return err
		}
		wait(installSilence)
		stream, err := s.LifecycleClient.Upgrade(ctx, &machineapi.LifecycleServiceUpgradeRequest{
			Containerd: containerd(), Source: &machineapi.InstallArtifactsSource{ImageName: installer},
		})
		if err != nil {
			return changed(err)
		}
		return installed(stream, wait, say)
	})
	// One installer at a time (internal/app/lifecycle/lifecycle.go, Upgrade).
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.FailedPrecondition && strings.Contains(e.text, "already in progress") {
		err = fmt.Errorf("%w: %w", cluster.ErrBusy, err)
	}
	return reboots, err
}

// installed waits for the installer to end.
func installed(stream grpc.ServerStreamingClient[machineapi.LifecycleServiceUpgradeResponse], wait patience, say func(string)) error {
	var last lastLines
	ended, code := false, int32(0)
	for {
		m, err := stream.Recv()
		switch {
		case err == nil:
		case ended && code == 0:
			return nil // whatever follows its exit code
		case ended:
			return fmt.Errorf("the installer ended with exit code %d%s", code, last)
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the machine does not say how the installer ended%s", cluster.ErrLostAnswer, last)
		default:
			return failedInstall(err, last)
		}
		wait(installSilence)
		switch r := m.GetProgress().GetResponse().(type) {
		case *machineapi.LifecycleServiceInstallProgress_Message:
			for line := range strings.Lines(r.Message) {
				if line = strings.TrimSpace(foreign.Line(line)); line != "" {
					say(line)
					last.add(line)
				}
			}
		case *machineapi.LifecycleServiceInstallProgress_ExitCode:
			ended, code = true, r.ExitCode
		}
	}
}

// failedInstall distinguishes the code Internal of the service, which is an answer, from the code Internal of a
// broken transport (internal/app/lifecycle/lifecycle.go, Upgrade).
func failedInstall(err error, last lastLines) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Internal && strings.HasPrefix(e.text, "upgrade failed: ") {
		return fmt.Errorf("%w%s", err, last)
	}
	return changed(err)
}

// oldInstall uses the only API before 1.13. That API answers when Talos has pulled the installer, and installs
// afterwards. preserve, the default since 1.8, keeps EPHEMERAL. On a control plane, Talos 1.12 locks a mutex in etcd
// and refuses unless every member is up and there are not exactly two, whatever preserve says; only force would skip
// that check (v1alpha1_server.go, Upgrade). Talos acknowledges and drops an upgrade during another one: only the
// system that boots then shows it.
func oldInstall(ctx context.Context, s session, installer string, how cluster.Reboot, say func(string)) error {
	say("the machine pulls the installer, then installs it and reboots")
	request := &machineapi.UpgradeRequest{Image: installer, Preserve: true}
	if how == cluster.ByFirmware {
		request.RebootMode = machineapi.UpgradeRequest_POWERCYCLE
	}
	//lint:ignore SA1019 there is no other before 1.13
	answers, err := s.MachineClient.Upgrade(ctx, request)
	answers, err = client.FilterMessages(answers, err)
	if err != nil {
		return changed(err)
	}
	one, err := single("upgrade", answers, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if ack := one.GetAck(); ack != "" {
		say(ack)
	}
	return nil
}

// Reboot restarts the machine. It returns when the machine has accepted the request. Talos' own mode is kexec if the
// kernel can do it; POWERCYCLE skips kexec (v1alpha1_sequencer.go, Reboot).
func (c *Client) Reboot(ctx context.Context, addr netip.Addr, uuid string, how cluster.Reboot) error {
	var mode []client.RebootMode
	if how == cluster.ByFirmware {
		mode = append(mode, client.WithPowerCycle)
	}
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Reboot(ctx, mode...)
	})
}

// Rollback makes the other boot entry the default and reboots.
func (c *Client) Rollback(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Rollback(ctx)
	})
}

// RestartKubelet implements cluster.KubeletRestarter. Talos lets the API restart the kubelet, among a cluster's
// services (APIRestartAllowed in internal/app/machined/pkg/system/services/kubelet.go).
func (c *Client) RestartKubelet(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		_, err := s.Client.ServiceRestart(ctx, "kubelet")
		return err
	})
}

// lifecycleAPI returns how long the machine may be silent while it pulls an image for its lifecycle API; 0 if the
// machine has no lifecycle API. As for talosctl, the version decides: the API exists since 1.13.0-alpha.3
// (cmd/talosctl/cmd/talos/upgrade.go).
func lifecycleAPI(ctx context.Context, s session) (pull time.Duration, err error) {
	var m cluster.Machine
	if err := readVersion(ctx, s, &m); err != nil {
		return 0, err
	}
	v, err := config.ParseContractFromVersion(m.TalosVersion)
	if err != nil || v.Major != 1 {
		return 0, fault.Refusedf("recast does not know how Talos %q is upgraded", m.TalosVersion)
	}
	switch strings.TrimPrefix(m.TalosVersion, "v") {
	case "1.13.0-alpha.0", "1.13.0-alpha.1", "1.13.0-alpha.2":
		return 0, nil
	}
	switch {
	case v.Minor < 13:
		return 0, nil
	case v.Minor == 13:
		return patientPullSilence, nil
	}
	return pullSilence, nil
}

// pullProgress reduces the many reports that a machine sends for each layer to a few lines.
type pullProgress struct {
	say    func(string)
	layers map[string]pulledLayer
	said   int64 // tenths of the whole pull
}

// pulledLayer is the progress of a layer in bytes; total is the largest reported total.
type pulledLayer struct{ done, total int64 }

// add reports the progress whenever another tenth is done.
func (p *pullProgress) add(m *machineapi.ImageServicePullProgress) {
	if m.GetProgress() == nil {
		return
	}
	// During and after the extraction of a layer, the machine reports no total for it.
	layer := p.layers[m.GetLayerId()]
	layer.total = max(layer.total, m.GetProgress().GetTotal())
	layer.done = layer.total
	if m.GetProgress().GetStatus() == machineapi.ImageServicePullLayerProgress_DOWNLOADING {
		layer.done = min(m.GetProgress().GetOffset(), layer.total)
	}
	p.layers[m.GetLayerId()] = layer
	var done, total int64
	for _, l := range p.layers {
		done, total = done+l.done, total+l.total
	}
	if total <= 0 || done*10/total <= p.said {
		return
	}
	p.said = done * 10 / total
	unit, shift := "MiB", 20
	if total < 1<<20 {
		unit, shift = "KiB", 10
	}
	p.say(fmt.Sprintf("pulled %d of %d %s", done>>shift, total>>shift, unit))
}

// lastLines are the last lines of an installer, which say why it failed.
type lastLines []string

func (l *lastLines) add(line string) {
	const keep = 5
	*l = append(*l, line)
	*l = slices.Clone((*l)[max(0, len(*l)-keep):])
}

func (l lastLines) String() string {
	if len(l) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(l, "; ")
}
