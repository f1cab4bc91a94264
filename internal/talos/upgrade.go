package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
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
)

// How long a machine may say nothing while it pulls and installs.
const (
	pullSilence    = 5 * time.Minute
	installSilence = 5 * time.Minute
	// The old API answers once, after it has pulled and tried the installer.
	oldInstallTimeout = 20 * time.Minute
	rebootTimeout     = 30 * time.Second
)

// containerd is where talosctl has installers pulled to, and run from: the store
// on EPHEMERAL, not the one in memory (cmd/talosctl/cmd/talos/image.go, containerdInstance).
func containerd() *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
}

// PullInstaller makes the machine fetch the installer. A pull that broke off may be repeated.
func (c *Client) PullInstaller(
	ctx context.Context, addr netip.Addr, uuid, installer string, say func(string),
) (supported bool, err error) {
	err = c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was pulled"); err != nil {
			return err
		}
		if supported, err = hasLifecycleAPI(ctx, s); err != nil || !supported {
			return err
		}
		wait(pullSilence)
		stream, err := s.ImageClient.Pull(ctx, &machineapi.ImageServicePullRequest{Containerd: containerd(), ImageRef: installer})
		if err == nil {
			err = pulled(stream, wait, say)
		}
		if err != nil {
			return fmt.Errorf("pull %s: %w", installer, answer(err))
		}
		return nil
	})
	return supported, err
}

// pulled waits for the name under which the machine has the image, the last thing it says.
func pulled(stream grpc.ServerStreamingClient[machineapi.ImageServicePullResponse], wait patience, say func(string)) error {
	p, name := newPullProgress(say), ""
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && name == "":
			return errors.New("the machine ended it without the image")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		wait(pullSilence)
		if n := m.GetName(); n != "" {
			name = n
		}
		p.add(m.GetPullProgress())
	}
}

// Install writes the installer's system beside the running one. The error wraps
// cluster.ErrLostAnswer where it is not known how far that came, and
// cluster.ErrBusy where another installer is at work.
func (c *Client) Install(ctx context.Context, addr netip.Addr, uuid, installer string, say func(string)) (reboots bool, err error) {
	err = c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was installed"); err != nil {
			return err
		}
		lifecycle, err := hasLifecycleAPI(ctx, s)
		if err != nil {
			return err
		}
		if reboots = !lifecycle; reboots {
			wait(oldInstallTimeout)
			return oldInstall(ctx, s, installer, say)
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

// installed waits for the installer's end.
func installed(stream grpc.ServerStreamingClient[machineapi.LifecycleServiceUpgradeResponse], wait patience, say func(string)) error {
	var last lastLines
	ended, code := false, int32(0)
	for {
		m, err := stream.Recv()
		switch {
		case err == nil:
		case ended && code == 0:
			return nil // whatever comes behind its exit code
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
				if line = strings.TrimSpace(line); line != "" {
					say(line)
					last.add(line)
				}
			}
		case *machineapi.LifecycleServiceInstallProgress_ExitCode:
			ended, code = true, r.ExitCode
		}
	}
}

// failedInstall knows the service's own Internal, an answer, from that of a
// broken transport (internal/app/lifecycle/lifecycle.go, Upgrade).
func failedInstall(err error, last lastLines) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Internal && strings.HasPrefix(e.text, "upgrade failed: ") {
		return fmt.Errorf("%w%s", err, last)
	}
	return changed(err)
}

// oldInstall is the only API before 1.13: it answers when the installer is there
// and begins to install afterwards. preserve, the default since 1.8, keeps
// EPHEMERAL; without force it refuses while another upgrade runs.
func oldInstall(ctx context.Context, s session, installer string, say func(string)) error {
	say("the machine pulls the installer, then installs it and reboots")
	//lint:ignore SA1019 there is no other before 1.13
	answers, err := s.MachineClient.Upgrade(ctx, &machineapi.UpgradeRequest{Image: installer, Preserve: true})
	answers, err = client.FilterMessages(answers, err)
	if err != nil {
		return changed(err)
	}
	one, err := single(answers.GetMessages())
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if ack := one.GetAck(); ack != "" {
		say(ack)
	}
	return nil
}

// Reboot restarts the machine; it returns when the machine has accepted it.
func (c *Client) Reboot(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Reboot(ctx)
	})
}

// Rollback makes the other boot entry the default one and reboots.
func (c *Client) Rollback(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, rebootTimeout, func(ctx context.Context, s session) error {
		return s.Client.Rollback(ctx)
	})
}

// hasLifecycleAPI decides by the machine's version, as talosctl does: it has
// been there since 1.13.0-alpha.3 (cmd/talosctl/cmd/talos/upgrade.go).
func hasLifecycleAPI(ctx context.Context, s session) (bool, error) {
	var m cluster.Machine
	if err := readVersion(ctx, s, &m); err != nil {
		return false, err
	}
	v, err := config.ParseContractFromVersion(m.TalosVersion)
	if err != nil || v.Major != 1 {
		return false, fault.Refusedf("recast does not know how Talos %q is upgraded", m.TalosVersion)
	}
	switch strings.TrimPrefix(m.TalosVersion, "v") {
	case "1.13.0-alpha.0", "1.13.0-alpha.1", "1.13.0-alpha.2":
		return false, nil
	}
	return v.Minor >= 13, nil
}
