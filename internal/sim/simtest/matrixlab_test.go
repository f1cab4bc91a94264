package simtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/exchange/exchangetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// A matrix lab has one Proxmox node with one stopped VM.
const (
	matrixHost     = "pve1"
	matrixEndpoint = "127.42.8.1:8006"
	matrixCluster  = "matrix"
	matrixNode     = "wk1"
	matrixVM       = 9011
	matrixHolder   = 200
	matrixParking  = 9900
	matrixISO      = "local:iso/recast-v1.13.9-3f2a-nocloud-amd64.iso"
	matrixImage    = "local:import/recast-v1.13.9-3f2a-nocloud-amd64.raw"
	matrixToken    = "recast@pve!matrix"
	matrixSecret   = "5ec0ffee-3a71-4000-8000-000000000001"
)

// matrixLab is a simulated Proxmox with fault injection. An exchange needs nothing else,
// so one takes milliseconds.
type matrixLab struct {
	t        *testing.T
	world    *world.World
	recorder *record.Recorder
	network  *network.Network
	cert     tls.Certificate
	shape    matrixShape
	disks    []matrixDisk // all initial volumes

	mu      sync.Mutex
	named   map[string]string // latest volid of each in a configuration
	mends   []func()          // end the faults that outlast a call
	late    []*matrixLate
	busy    bool          // at the latest check, work was in progress
	broken  []string      // promises found broken after some call
	clients []*pve.Client // to be closed
}

// matrixDisk is a volume that must never be freed.
type matrixDisk struct {
	name  string // its name in test failures
	media *world.Media
	held  bool // by a holder, whose configuration always names it
}

func newMatrixLab(t *testing.T, shape matrixShape) *matrixLab {
	t.Helper()
	l := &matrixLab{
		t: t, world: world.New(world.Options{Cluster: matrixCluster}), recorder: record.New(), network: network.Memory(),
		cert: apitest.NewCertificate(t), shape: shape, named: map[string]string{},
	}
	listener, err := l.network.Listen(matrixEndpoint)
	must(t, err)
	l.world.AddHost(matrixHost)
	server := pveapi.New(l.world, l.recorder, matrixHost)
	server.Serve(listener, l.cert)
	t.Cleanup(func() {
		for _, c := range l.clients {
			c.Close()
		}
		l.world.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	l.grant()
	must(t, l.build())
	return l
}

// grant gives the token the permissions for an exchange: the role of a roll, and those for
// the shape's settings.
func (l *matrixLab) grant() {
	l.world.AddRole("Recast", append(sim.Privileges(), "VM.Config.Cloudinit", "Sys.Modify", "Sys.Console")...)
	l.world.AddToken(world.Token{ID: matrixToken, Secret: matrixSecret, Privsep: true})
	for _, who := range []string{"recast@pve", matrixToken} {
		l.world.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
}

// matrixLife is one process of recast, from its start to its end or death.
type matrixLife struct {
	*matrixLab
	px     *pve.Client
	dialer *network.Dialer
	cancel context.CancelFunc
}

// live starts a process that knows nothing of earlier ones.
func (l *matrixLab) live(ctx context.Context) (context.Context, *matrixLife) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	life := &matrixLife{matrixLab: l, dialer: l.network.Dialer(), cancel: cancel}
	px, err := pve.New(api.Options{
		Endpoints: []string{"https://" + matrixEndpoint}, Token: cluster.Secret(matrixToken + "=" + matrixSecret),
		Fingerprint: apitest.Fingerprint(l.cert.Leaf), Dial: life.dialer.DialContext, Poll: 2 * time.Second,
	})
	must(l.t, err)
	life.px = px
	l.clients = append(l.clients, px)
	return ctx, life
}

// kill ends a process: the world refuses all its later calls.
func (life *matrixLife) kill() {
	life.dialer.Cut()
	life.cancel()
}

// exchange is all that a process does: it begins or resumes the exchange, from Proxmox's state alone, and completes
// it, forward or back.
func (life *matrixLife) exchange(ctx context.Context, strategy cluster.Strategy, putBack bool) error {
	return life.run(ctx, life.exchangeBy(strategy), putBack)
}

func (life *matrixLife) exchangeBy(strategy cluster.Strategy) *exchangetest.Exchange {
	x := &exchangetest.Exchange{
		Proxmox: life.px, Record: parking.Record{Cluster: matrixCluster, Node: matrixNode, Run: life.shape.run(strategy), Build: "3f2a", Strategy: strategy}, VMID: matrixVM,
		SystemGiB: matrixSystemGiB, ParkingIDs: []cluster.VMID{matrixParking, matrixParking + 1, matrixParking + 2}, ISO: isoOfMatrix, Image: imageOfMatrix, DiskBytes: int64(len(matrixDiskImage())),
	}
	if life.shape.prepared {
		x.Record.Prepared = matrixImage
	}
	return x
}

func (life *matrixLife) run(ctx context.Context, x *exchangetest.Exchange, putBack bool) error {
	if err := exchange.AwaitOwnTasks(ctx, life.px, func(cluster.VMID) bool { return true }, 2*time.Second, nil); err != nil {
		return err
	}
	steps, err := x.Begin(ctx, putBack)
	if err != nil {
		return err
	}
	return (&step.Runner{}).Run(ctx, steps)
}

func isoOfMatrix(context.Context) (string, error)   { return matrixISO, nil }
func imageOfMatrix(context.Context) (string, error) { return matrixImage, nil }

// matrixDiskImage is a disk that is smaller than the VM's.
func matrixDiskImage() []byte { return bytes.Repeat([]byte("a disk of Talos."), 1<<10) }

// TestMatrixSees violates the invariants by hand: the matrix must detect it.
func TestMatrixSees(t *testing.T) {
	t.Parallel()
	value := func(l *matrixLab, key string) string {
		vm, err := l.world.LookupVM(matrixHost, matrixVM)
		must(l.t, err)
		return vm.Config[key]
	}
	park := func(l *matrixLab) error {
		err := l.world.DefineVM(matrixHost, matrixParking, map[string]string{"memory": "16"}, nil)
		if err != nil {
			return err
		}
		return l.done(l.world.MoveDisk("root@pam", matrixHost, world.MoveRequest{ID: matrixVM, Disk: "scsi2", Target: matrixParking}))
	}
	cases := map[string]struct {
		do   func(l *matrixLab) error
		want string
	}{
		"nothing": {func(*matrixLab) error { return nil }, ""},
		"a volume is freed": {func(l *matrixLab) error {
			volid, _, _ := strings.Cut(value(l, "efidisk0"), ",")
			return l.done(l.world.DeleteVolume("root@pam", matrixHost, volid))
		}, "efidisk0 of VM 9011 was freed"},
		"a volume is in two VMs": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, 9012, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 is in several VMs that may run: [9011 9012]"},
		"a volume is in a VM and on the parking VM": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, matrixParking, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 has several names: [9011-scsi2 9900-scsi0]"},
		"a volume loses its name": {func(l *matrixLab) error {
			l.world.StopNextMove(world.AfterSource, false)
			return park(l)
		}, "has no name, and no record says that it is on its way"},
		"a VM runs without a disk": {func(l *matrixLab) error {
			if err := park(l); err != nil {
				return err
			}
			return l.done(l.world.Start("root@pam", matrixHost, matrixVM))
		}, "VM 9011 runs without scsi2 of VM 9011, which is parked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shape := usualShape(bothDisks, cluster.Recreate)
				shape.kept, shape.ha = false, false
				l := newMatrixLab(t, shape)
				l.look(record.Call{Method: "before"})
				must(t, c.do(l))
				l.look(record.Call{Method: "after"})
				seen := strings.Join(append(l.broken, l.unfreed()...), "\n")
				if c.want == "" && seen != "" || !strings.Contains(seen, c.want) {
					t.Errorf("seen %q, want %q", seen, c.want)
				}
			})
		})
	}
}
