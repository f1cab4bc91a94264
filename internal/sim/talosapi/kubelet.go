package talosapi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// The kubelet's durations, at speed 1.
const (
	kubeletEnds   = time.Second      // from an order to end until it has ended
	kubeletHealth = 2 * time.Second  // from its start until the first health check (services/kubelet.go)
	manifestCheck = 20 * time.Second // maximum delay until it sees a change of static pods: its httpCheckFrequency
	statusCheck   = 15 * time.Second // maximum delay until Talos sees a change of a static pod (KubeletStaticPodController)
)

// kubeletID is the ID of the kubelet service.
const kubeletID = "kubelet"

// kubelet is the kubelet service of one boot, with its static pods.
type kubelet struct {
	b *boot

	telling sync.Mutex // serializes reports to Kubernetes, so that the last one is current

	mu      sync.Mutex
	status  service
	ordered int             // restarts requested through the API
	done    int             // those that have begun
	pods    map[string]*pod // by component; nil until the kubelet has started some
	changed chan struct{}   // closed when its specification or a pod changes
}

func newKubelet(b *boot) *kubelet {
	return &kubelet{
		b: b, changed: make(chan struct{}), pods: map[string]*pod{},
		status: service{id: kubeletID, state: stateWaiting, message: "Waiting for service \"cri\" to be \"up\"", unknown: true, at: b.started},
	}
}

// notify wakes the waiters for a change.
func (k *kubelet) notify() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kubelet) service() service {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// become publishes a new state of the service.
func (k *kubelet) become(ctx context.Context, state, message string, healthy, unknown bool) {
	s := service{id: kubeletID, state: state, message: message, healthy: healthy, unknown: unknown, at: time.Now()}
	if state == stateRunning && !healthy && !unknown {
		s.problem = errNoKubelet
		s.message = "Health check failed: " + errNoKubelet
	}
	k.mu.Lock()
	k.status = s
	k.mu.Unlock()
	k.notify()
	if err := k.b.refresh(ctx); err != nil && ctx.Err() == nil {
		k.b.m.console("service %s: %v", kubeletID, err)
	}
}

// errNoKubelet is the health check's error if the process does not listen.
const errNoKubelet = `Get "http://127.0.0.1:10248/healthz": dial tcp 127.0.0.1:10248: connect: connection refused`

// wanted is the configured image, the generation whose change restarts the kubelet, and a
// channel that is closed when either may have changed.
func (k *kubelet) wanted() (image, generation string, changed <-chan struct{}) {
	var args []string
	if cfg := k.b.config().K8sKubeletConfig(); cfg != nil {
		image, args = cfg.Image(), arguments(cfg.ExtraArgs())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return image, fmt.Sprint(image, args, k.ordered), k.changed
}

// run keeps the service as specified: a changed specification restarts it
// (KubeletServiceController). started is closed at the first start.
func (k *kubelet) run(ctx context.Context, started chan<- struct{}) {
	atOnce := true
	for ctx.Err() == nil {
		image, generation, _ := k.wanted()
		life, end := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.serve(life, image, atOnce, func() {
				if started != nil {
					close(started)
					started = nil
				}
			})
		}()
		for {
			_, now, changed := k.wanted()
			if now != generation || !awaitChange(ctx, changed, time.Time{}) {
				break
			}
		}
		end()
		<-done
		if !k.end(ctx) {
			return
		}
		atOnce = false
	}
}

// end waits for the end of the process. Its containers keep running.
func (k *kubelet) end(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	if k.service().state == stateRunning {
		k.become(ctx, stateStopping, fmt.Sprintf("Sending SIGTERM to task %s (PID %d, container %s)", kubeletID, k.b.pid(kubeletID), kubeletID), false, false)
		if !k.b.m.spend(ctx, "kubelet", kubeletEnds) {
			return false
		}
	}
	k.b.withdraw()
	k.become(ctx, stateFinished, "Service finished successfully", false, false)
	return ctx.Err() == nil
}

// serve is one run of the service, until ctx ends. With atOnce, the first run of a boot
// takes no time: it is part of the services' start.
func (k *kubelet) serve(ctx context.Context, image string, atOnce bool, started func()) {
	b := k.b
	k.mu.Lock()
	k.done = k.ordered
	k.mu.Unlock()
	k.become(ctx, statePreparing, "Running pre state", false, true)
	if err := k.fetch(ctx, image, atOnce); err != nil {
		if ctx.Err() == nil {
			k.become(ctx, stateFailed, fmt.Sprintf("Failed to run pre stage: %v", err), false, true)
			<-ctx.Done()
		}
		return
	}
	message := fmt.Sprintf("Started task %s (PID %d) for container %s", kubeletID, b.pid(kubeletID), kubeletID)
	if b.m.fw.defects.ofRef(image, b.m.has()) == Unready {
		k.become(ctx, stateRunning, message, false, true)
		if b.m.fw.sleep(ctx, kubeletHealth) {
			k.become(ctx, stateRunning, "", false, false)
			<-ctx.Done()
		}
		return
	}
	var registering sync.WaitGroup
	defer registering.Wait()
	if served, _ := b.registers(); served {
		b.announce(image)
	} else {
		registering.Go(func() { k.register(ctx, image) })
	}
	if !atOnce {
		k.become(ctx, stateRunning, message, false, true)
		if !b.m.spend(ctx, "kubelet", kubeletHealth) {
			return
		}
	}
	k.become(ctx, stateRunning, "Health check successful", true, false)
	started()
	k.runPods(ctx)
}

// register announces the node as soon as a new cluster's API serves.
func (k *kubelet) register(ctx context.Context, image string) {
	for {
		served, changed := k.b.registers()
		if served {
			break
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return
		}
	}
	k.b.announce(image)
	k.tellPods()
}

// fetch pulls the image. With atOnce that is part of the services' start and takes no
// time, unless the image is broken.
func (k *kubelet) fetch(ctx context.Context, image string, atOnce bool) error {
	name := imageName{driver: common.ContainerDriver_CRI, namespace: common.ContainerdNamespace_NS_SYSTEM, ref: image}
	_, err := k.b.pullContainer(ctx, name, legacyRetries, atOnce)
	return err
}

// restart restarts the service as the API does: it returns when the process has ended and
// is starting again.
func (k *kubelet) restart(ctx context.Context) error {
	k.mu.Lock()
	k.ordered++
	mine := k.ordered
	k.mu.Unlock()
	k.notify()
	for {
		k.mu.Lock()
		done, changed := k.done >= mine, k.changed
		k.mu.Unlock()
		if done {
			return nil
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return ctx.Err()
		}
	}
}

// arguments are sorted flags, as argsbuilder writes them.
func arguments(extra map[string][]string) []string {
	var all []string
	for name, values := range extra {
		for _, v := range values {
			all = append(all, "--"+name+"="+v)
		}
	}
	slices.Sort(all)
	return all
}

// kubeletSpec is the kubelet's specification.
func (b *boot) kubeletSpec(image string, extra map[string][]string) *k8s.KubeletSpec {
	r := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	r.TypedSpec().Image = image
	r.TypedSpec().Args = append([]string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig", "--cert-dir=/var/lib/kubelet/pki", "--config=/etc/kubernetes/kubelet.yaml",
	}, arguments(extra)...)
	r.TypedSpec().Config = map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
	return r
}

// rendered are the static pods that Talos renders for the kubelet.
func (b *boot) rendered(ctx context.Context) (map[string]map[string]any, error) {
	all := map[string]map[string]any{}
	for _, id := range components {
		r, err := b.store.st.Get(ctx, k8s.NewStaticPod(k8s.NamespaceName, id).Metadata())
		if state.IsNotFoundError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read static pod %s: %w", id, err)
		}
		all[id] = r.(*k8s.StaticPod).TypedSpec().Pod
	}
	return all, nil
}

// startKubelet starts the service and waits until it is healthy, as the boot sequence
// does, unless an order to end comes before.
func (b *boot) startKubelet(ctx context.Context) outcome {
	started := make(chan struct{})
	b.tasks.Go(func() { b.kubelet.run(ctx, started) })
	b.tasks.Go(func() { b.kubelet.watchPods(ctx) })
	return until(ctx, b, started)
}
