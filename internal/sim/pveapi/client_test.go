package pveapi_test

import (
	"errors"
	"io"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	proxmox "github.com/luthermonson/go-proxmox"

	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// waits waits for a task of go-proxmox, which must succeed.
func waits(t *testing.T) func(task *proxmox.Task, err error) {
	return func(task *proxmox.Task, err error) {
		t.Helper()
		must(t, err)
		must(t, task.Wait(t.Context(), time.Second, time.Minute))
		if !task.IsSuccessful {
			t.Fatalf("task %s: %s", task.UPID, task.ExitStatus)
		}
	}
}

// TestGoProxmox takes a VM through its life with the go-proxmox client library.
func TestGoProxmox(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		ctx := t.Context()
		client := proxmox.NewClient(base, proxmox.WithHTTPClient(l.client), proxmox.WithAPIToken(tokenID, secret))
		version, err := client.Version(ctx)
		must(t, err)
		if version.Release != "9.2" {
			t.Errorf("version %+v", version)
		}
		nodes, err := client.Nodes(ctx)
		must(t, err)
		if len(nodes) != 2 {
			t.Errorf("%d nodes", len(nodes))
		}
		cluster, err := client.Cluster(ctx)
		must(t, err)
		if cluster.Quorate != 1 {
			t.Errorf("cluster %+v", cluster)
		}
		node, err := client.Node(ctx, "pve1")
		must(t, err)
		wait := waits(t)
		wait(node.NewVirtualMachine(ctx, 9012,
			proxmox.VirtualMachineOption{Name: "name", Value: "wk2"},
			proxmox.VirtualMachineOption{Name: "cores", Value: 4},
			proxmox.VirtualMachineOption{Name: "scsi0", Value: "thin:8,serial=s"}))
		vm, err := node.VirtualMachine(ctx, 9012)
		must(t, err)
		if diff := cmp.Diff([]any{"wk2", 4, "thin:vm-9012-disk-0,serial=s,size=8G"}, []any{vm.Name, vm.CPUs, vm.VirtualMachineConfig.SCSIs["scsi0"]}); diff != "" {
			t.Error(diff)
		}
		wait(vm.Start(ctx))
		must(t, vm.Ping(ctx))
		if vm.Status != "running" || vm.QMPStatus != "running" {
			t.Errorf("%s, %s", vm.Status, vm.QMPStatus)
		}
		wait(vm.Stop(ctx))
		wait(vm.ResizeDisk(ctx, "scsi0", "+2G"))
		wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "onboot", Value: true}))
		storage, err := node.Storage(ctx, "thin")
		must(t, err)
		content, err := storage.GetContent(ctx)
		must(t, err)
		if len(content) != 1 || content[0].Size != 10<<30 || content[0].VMID != 9012 {
			t.Errorf("content %+v", content)
		}
		wait(vm.Delete(ctx, nil))
		if got := l.world.Media("thin:vm-9012-disk-0", "pve1"); got != nil {
			t.Error("the disk is still there")
		}
	})
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.do("GET", "/version")
		l.putOK(vm+"/config", "cores=3")
		l.do("PUT", vm+"/config", "cipassword=hidden", "args=-S", "cores=4") // refused: only root may set args
		const agent = "Go-http-client/1.1"
		want := []record.Call{
			{Seq: 1, Proto: "proxmox", Target: "pve1", Method: "GET", Path: "/api2/json/version", Params: map[string]string{}, User: tokenID, Agent: agent, Status: 200, Bytes: 65},
			{Seq: 2, Proto: "proxmox", Target: "pve1", Method: "PUT", Path: "/api2/json" + vm + "/config", Params: map[string]string{"cores": "3"}, User: tokenID, Agent: agent, Mutation: true, Status: 200, Bytes: 13},
			{Seq: 3, Proto: "proxmox", Target: "pve1", Method: "PUT", Path: "/api2/json" + vm + "/config", Params: map[string]string{"args": "-S", "cores": "4"}, User: tokenID, Agent: agent, Mutation: true, Status: 500},
		}
		if diff := cmp.Diff(want, l.rec.Calls()); diff != "" {
			t.Error(diff)
		}
		// A failed hook breaks the connection, without any effect.
		l.rec.Hooks(func(record.Call) error { return io.ErrUnexpectedEOF }, nil)
		res, err := l.client.PostForm(base+vm+"/config", url.Values{"cores": {"7"}})
		if err == nil {
			_ = res.Body.Close()
			t.Fatalf("an answer: %s", res.Status)
		}
		l.rec.Hooks(nil, func(record.Call) { l.dialer.Cut() })
		if res, err := l.client.Get(base + "/version"); err == nil {
			_ = res.Body.Close()
			t.Error("an answer in spite of the cut")
		}
		vms := l.world.VMs()
		if got := vms[0].Config["cores"]; got != "3" {
			t.Errorf("cores %s", got)
		}
	})
}

// guest is a firmware and its only guest: it powers off five seconds after the request.
type guest struct {
	world  *world.World
	hw     *world.Hardware
	killed chan struct{}
	deaf   bool
}

func (g *guest) PowerOn(hw *world.Hardware) world.Guest { g.hw = hw; return g }
func (g *guest) Kill()                                  { close(g.killed) }
func (g *guest) Shutdown() {
	if !g.deaf {
		time.AfterFunc(5*time.Second, g.hw.PowerOff)
	}
}

var _ world.Guest = (*guest)(nil)

func TestShutdown(t *testing.T) {
	t.Parallel()
	type row struct {
		deaf bool
		form []string
		want string
		took time.Duration
	}
	tests := map[string]row{
		"clean":        {want: "OK", took: 9 * time.Second}, // a second for the task, three for the missing agent
		"deaf":         {deaf: true, form: []string{"timeout=20"}, want: "VM quit/powerdown failed - got timeout", took: 24 * time.Second},
		"deaf, forced": {deaf: true, form: []string{"timeout=20", "forceStop=1"}, want: "WARNINGS: 1", took: 24 * time.Second},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		g := &guest{world: l.world, killed: make(chan struct{}), deaf: test.deaf}
		l.world.SetFirmware(g)
		if got := l.task("POST", vm+"/status/start"); got != "OK" {
			t.Fatal(got)
		}
		drives := g.hw.Drives()
		var seen []string
		for _, d := range drives {
			seen = append(seen, d.Key+" "+d.Serial)
		}
		if diff := cmp.Diff([]string{"ide2 ", "scsi0 sys", "scsi1 data-wk1"}, seen); diff != "" {
			t.Error(diff)
		}
		if got := l.task("POST", vm+"/status/start"); got != "VM 9011 already running" {
			t.Error(got)
		}
		began := time.Now()
		if got := l.task("POST", vm+"/status/shutdown", test.form...); got != test.want {
			t.Errorf("ended with %q", got)
		}
		if took := time.Since(began); took != test.took {
			t.Errorf("took %v", took)
		}
		running := l.world.VMs()[0].Running
		if wantRunning := test.want == "VM quit/powerdown failed - got timeout"; running != wantRunning {
			t.Errorf("running: %v", running)
		}
		if !running {
			<-g.killed
			if g.hw.Drives() != nil {
				t.Error("the dead guest still sees its drives")
			}
		}
		g.hw.PowerOff() // safe even after Kill
	})
}

func TestClosedWorldBreaksConnections(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.PowerOn(9011))
		upid := l.do("POST", vm+"/status/shutdown").Data.(string)
		ended := make(chan error)
		go func() {
			res, err := l.client.PostForm(base+"/x", nil) // the 401 takes three seconds
			if err == nil {
				_ = res.Body.Close()
				err = errors.New(res.Status)
			}
			ended <- err
		}()
		time.Sleep(2 * time.Second)
		l.world.Close()
		if err := <-ended; err.Error() == "401 No ticket" {
			t.Error(err)
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "unexpected status" {
			t.Errorf("%+v", task)
		}
	})
}
