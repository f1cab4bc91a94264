package talosapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/world"
)

// Trouble is the faults of a machine, whatever it boots; the zero value is none.
type Trouble struct {
	Unplugged bool              // no network from its next power-on
	Nameless  bool              // its disks show neither serials nor WWNs
	Full      bool              // EPHEMERAL has no room for an image
	Refuses   string            // its answer to a configuration, which it refuses
	Images    map[string]Defect // defects of images on this machine alone, by reference
	NoOneShot bool              // its kernel can't write EFI variables: after a kexec it reports the previous boot entry
	Clock     time.Duration     // offset of its clock, without a time server to correct it
}

// troubles are the machines' faults.
type troubles struct {
	mu      sync.Mutex
	what    map[int]Trouble // by VMID
	changed chan struct{}   // closed at the next change
}

// Trouble sets the faults of a VM's machine; they survive power cycles.
func (fw *Firmware) Trouble(vmid int, t Trouble) {
	fw.troubles.mu.Lock()
	defer fw.troubles.mu.Unlock()
	fw.troubles.what[vmid] = t
	close(fw.troubles.changed)
	fw.troubles.changed = make(chan struct{})
}

// trouble is the machine's faults, and a channel closed at their next change.
func (m *machine) trouble() (Trouble, <-chan struct{}) {
	m.fw.troubles.mu.Lock()
	defer m.fw.troubles.mu.Unlock()
	return m.fw.troubles.what[m.hw.VMID], m.fw.troubles.changed
}

// has is the machine's present faults.
func (m *machine) has() Trouble {
	t, _ := m.trouble()
	return t
}

// shown is a drive as the machine sees it.
func (t Trouble) shown(d world.Drive) world.Drive {
	if t.Nameless {
		d.Serial, d.WWN = "", ""
	}
	return d
}

// errFull is containerd's error without free space.
var errFull = errors.New("failed to extract layer: write /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs: no space left on device")

// certificateValidity is the lifetime of Talos' own certificates.
const certificateValidity = x509.DefaultCertificateValidityDuration

// offClock is the TLS of a machine with a wrong clock: it verifies others by that clock,
// and a control plane, which signs its own certificate, dates it by that clock.
func (b *boot) offClock(conf *tls.Config, ca *x509.PEMEncodedCertificateAndKey, name string) (*tls.Config, error) {
	off := b.m.has().Clock
	if off == 0 {
		return conf, nil
	}
	conf.Time = func() time.Time { return time.Now().Add(off) }
	if !b.config().Machine().Type().IsControlPlane() {
		return conf, nil
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's CA: %w", err)
	}
	dated := append(serverOptions(b.m.addr(), name), x509.NotBefore(conf.Time()), x509.NotAfter(conf.Time().Add(certificateValidity)))
	pair, err := x509.NewKeyPair(authority, dated...)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	conf.Certificates = []tls.Certificate{*pair.Certificate}
	return conf, nil
}

// awaitTime delays etcd and the kubelet until the clock is right, as their conditions do
// (services/etcd.go, kubelet.go in machined). Certificates are then renewed
// (controllers/secrets/api.go).
func (b *boot) awaitTime(ctx context.Context) (outcome, error) {
	for off := false; ; off = true {
		t, changed := b.m.trouble()
		switch {
		case t.Clock == 0 && off:
			b.stopAPI()
			b.secureAPI(ctx)
			return carryOn, nil
		case t.Clock == 0:
			return carryOn, nil
		}
		if err := b.stage(ctx, runtime.MachineStageBooting, false, "time: time is not synced", "services: kubelet not running"); err != nil {
			return carryOn, err
		}
		if end := until(ctx, b, changed); end != carryOn {
			return end, nil
		}
	}
}

// errNoMachined is apid's error while machined is down.
var errNoMachined = status.Error(codes.Unavailable,
	`connection error: desc = "transport: Error while dialing: dial unix /system/run/machined/machine.sock: connect: connection refused"`)

// haltTime is how long a halted machine stays so (constants.BootTimeout); then it reboots.
const haltTime = 70 * time.Minute

// halt is a machine whose boot medium finds Talos on a disk (haltIfInstalled in
// v1alpha1_sequencer_tasks.go): it only prints a message.
func (m *machine) halt(ctx context.Context) outcome {
	m.console("Talos is already installed to disk but booted from another media and talos.halt_if_installed kernel parameter is set. Please reboot from the disk.")
	if !m.fw.sleep(ctx, haltTime) {
		return killed
	}
	return powerCycle
}

// unauthorized is containerd's error if a registry requires credentials.
func unauthorized(ref string) error {
	name, digest, _ := strings.Cut(ref, "@")
	host, repository, _ := strings.Cut(name, "/")
	return fmt.Errorf("unexpected status from HEAD request to https://%s/v2/%s/manifests/%s: 401 Unauthorized", host, repository, digest)
}
