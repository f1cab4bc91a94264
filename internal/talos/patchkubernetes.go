package talos

import (
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// kubernetesPlaces are where a configuration names the images of Kubernetes: in
// separate documents since 1.14, otherwise in the main one. A configuration may mix
// both kinds (config/generate/stdpatches/guess.go).
var kubernetesPlaces = []struct {
	component cluster.Component
	kind      string
	legacy    []string
	image     func(config.Provider) string
}{
	{cluster.APIServer, "KubeAPIServerConfig", []string{"cluster", "apiServer"}, func(c config.Provider) string { return imageIn(c.K8sAPIServerConfig()) }},
	{cluster.ControllerManager, "KubeControllerManagerConfig", []string{"cluster", "controllerManager"}, func(c config.Provider) string { return imageIn(c.K8sControllerManagerConfig()) }},
	{cluster.Scheduler, "KubeSchedulerConfig", []string{"cluster", "scheduler"}, func(c config.Provider) string { return imageIn(c.K8sSchedulerConfig()) }},
	{cluster.KubeProxy, "KubeProxyConfig", []string{"cluster", "proxy"}, func(c config.Provider) string { return imageIn(c.K8sProxyConfig()) }},
	{cluster.Kubelet, "KubeletConfig", []string{"machine", "kubelet"}, func(c config.Provider) string { return imageIn(c.K8sKubeletConfig()) }},
}

func imageIn[T interface {
	comparable
	Image() string
}](c T) string {
	if c == *new(T) {
		return ""
	}
	return c.Image()
}

// editKubernetes sets the images named in the patch to its versions.
func editKubernetes(docs []*document, main *document, images cluster.KubernetesImages) error {
	for _, place := range kubernetesPlaces {
		like := images.Of(place.component)
		if like == "" {
			continue
		}
		of := func(d *document) bool { return d.node != nil && d.kind() == place.kind }
		var root mapping
		switch i := slices.IndexFunc(docs, of); {
		case i >= 0 && slices.ContainsFunc(docs[i+1:], of):
			return fault.MachineConfig.Refusedf("two documents of kind %q", place.kind)
		case i >= 0:
			root = docs[i].root
		default:
			var err error
			if root, err = main.root.edit(place.legacy...); err != nil {
				return err
			}
		}
		image, err := cluster.Retag(root.text("image"), like)
		if err != nil {
			return fault.As(fault.Refused, err)
		}
		root.set("image", "!!str", image)
	}
	return nil
}

// kubernetesPaths are the paths that editKubernetes sets in a document of that kind.
func kubernetesPaths(kind string, images cluster.KubernetesImages) (set [][]string) {
	for _, place := range kubernetesPlaces {
		switch {
		case images.Of(place.component) == "":
		case kind == "":
			set = append(set, append(slices.Clone(place.legacy), "image"))
		case kind == place.kind:
			set = append(set, []string{"image"})
		}
	}
	return set
}

// checkKubernetes checks that the configuration names the wanted versions.
func checkKubernetes(cfg config.Provider, images cluster.KubernetesImages) error {
	for _, place := range kubernetesPlaces {
		like := images.Of(place.component)
		if like != "" && !cluster.SameVersion(place.image(cfg), like) {
			return fault.MachineConfig.Refusedf("it would not run %s in the version of %s", place.component, like)
		}
	}
	return nil
}
