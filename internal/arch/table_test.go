package arch

// A row allows imports of one package besides the standard library. Several rows may match
// a package; an import needs one that allows it.
type row struct {
	pkg   string   // directory; "dir/..." is dir and all below it, "..." all
	files string   // pattern of file names; "": all but tests
	allow []string // directories of this module in the same form, and full paths of others; "!" revokes
}

const (
	tests = "*_test.go"

	errgroup   = "golang.org/x/sync/errgroup"
	yaml       = "go.yaml.in/yaml/v4"
	ggcr       = "github.com/google/go-containerregistry/pkg/..."
	factory    = "github.com/siderolabs/image-factory/pkg/client"
	schematic  = "github.com/siderolabs/image-factory/pkg/schematic"
	machinery  = "github.com/siderolabs/talos/pkg/machinery/..."
	talosDial  = "github.com/siderolabs/talos/pkg/machinery/client/..."
	cosi       = "github.com/cosi-project/runtime/..."
	pki        = "github.com/siderolabs/crypto/x509"
	grpc       = "google.golang.org/grpc/..."
	protobuf   = "google.golang.org/protobuf/..."
	proxmox    = "github.com/luthermonson/go-proxmox"
	k8sAPI     = "k8s.io/api/..."
	apimachine = "k8s.io/apimachinery/..."
	clientGo   = "k8s.io/client-go/..."
	drain      = "k8s.io/kubectl/pkg/drain"
	klog       = "k8s.io/klog/v2"
	cel        = "github.com/google/cel-go/..."
	upgradeK8s = "github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	uuid       = "github.com/google/uuid"
	bbolt      = "go.etcd.io/bbolt"
	zstd       = "github.com/klauspost/compress/zstd"
	xz         = "github.com/ulikunitz/xz"
	otel       = "go.opentelemetry.io/otel/..."
	prometheus = "github.com/prometheus/client_golang/prometheus"
	controller = "sigs.k8s.io/controller-runtime/..."
	semver     = "golang.org/x/mod/semver"
	terraform  = "github.com/hashicorp/terraform-json"
	jsonschema = "github.com/santhosh-tekuri/jsonschema/v6"
)

// table follows DESIGN: cmd → adapters → domain → internal/{step,wait,fault}. It must list
// every package and every import.
var table = []row{
	{pkg: "cmd/recast", allow: []string{
		"pipeline/...", "schematics/...", "images", "cluster/...", "internal/...", "!internal/sim/...",
		"github.com/spf13/cobra/...", "github.com/spf13/pflag",
	}},
	{pkg: "cmd/recast", allow: []string{"docs/runbooks", "deploy"}},
	{pkg: "cmd/recast", files: "typed_*.go", allow: []string{"golang.org/x/sys/unix"}},
	{pkg: "cmd/recast", files: "hidden_linux.go", allow: []string{"golang.org/x/sys/unix"}},
	{pkg: "docs/runbooks"},
	{pkg: "internal/browser", allow: []string{"internal/command", "internal/fault"}},
	{pkg: "internal/lab", allow: []string{"internal/sim", "internal/sim/network", "internal/fault", "github.com/spf13/cobra"}},
	{pkg: "cmd/recast", files: tests, allow: []string{"github.com/creack/pty"}}, // to simulate a terminal
	{pkg: "internal/live", files: tests, allow: []string{"github.com/creack/pty", "internal/live/emulator"}},
	{pkg: "internal/live/emulator"},                                                                    // for tests alone
	{pkg: "cmd/recast", files: tests, allow: []string{yaml}},                                           // for the pipelines among the examples
	{pkg: "cmd/recast", files: tests, allow: []string{jsonschema}},                                     // validates output against the published schemas
	{pkg: "cmd/recast", files: tests, allow: []string{k8sAPI, "sigs.k8s.io/yaml"}},                     // for the manifests among the examples
	{pkg: "cmd/recast", files: tests, allow: []string{"go.opentelemetry.io/proto/otlp/...", protobuf}}, // to simulate a collector

	// the objects of the operator, and the operator
	{pkg: "api/v1alpha1", allow: []string{k8sAPI, apimachine}},
	{pkg: "cmd/recast-operator", allow: []string{"api/v1alpha1", "internal/operator/...", "internal/web/frame", "internal/config", "internal/factory", "internal/talos", controller, apimachine, k8sAPI, clientGo, "github.com/spf13/cobra", "github.com/go-logr/logr"}},
	{pkg: "internal/operator", allow: []string{"api/v1alpha1", "internal/operator/...", controller, apimachine, k8sAPI, clientGo, prometheus, semver}},
	{pkg: "internal/operator", files: tests, allow: []string{"deploy"}},
	{pkg: "internal/operator/window", allow: []string{"github.com/robfig/cron/v3"}},
	{pkg: "internal/operator/source", allow: []string{"api/v1alpha1", "internal/trust", ggcr, "github.com/go-git/go-git/v5/..."}},
	{pkg: "internal/operator/attempt", allow: []string{"api/v1alpha1", "internal/operator/source", "internal/redact", "schematics", "cluster/planning", controller, apimachine, k8sAPI, yaml, semver}},
	{pkg: "internal/operator/job", allow: []string{"api/v1alpha1", "internal/operator/attempt", controller, apimachine, k8sAPI}},
	{pkg: "internal/operator/fleet", allow: []string{"api/v1alpha1", "internal/expression", controller, apimachine, k8sAPI, clientGo, cel}},
	// reads the cache, and knows no client of a cluster
	{pkg: "internal/operator/page", allow: []string{"api/v1alpha1", "internal/operator", "internal/operator/attempt", "internal/operator/job", "internal/redact", "internal/web/frame", controller, apimachine}},
	{pkg: "internal/operator/page", files: tests, allow: []string{"internal/operator/page/pagetest", "internal/web/frame/frametest"}},
	{pkg: "internal/operator/page/pagetest", allow: []string{"api/v1alpha1", controller, apimachine}},
	{pkg: "deploy", allow: []string{"internal/fault"}}, // the manifests of the operator: cmd/recast prints them
	{pkg: "deploy", files: tests, allow: []string{"api/v1alpha1", k8sAPI, apimachine, "sigs.k8s.io/yaml"}},

	{pkg: "pipeline", allow: []string{
		"schematics", "images/...", "cluster/...", "internal/config", "internal/step", "internal/bootimage", "internal/journal", "internal/fault", "internal/foreign", "internal/trust",
	}},
	{pkg: "pipeline", allow: []string{"pipeline/past", "internal/story", "internal/savefile"}},
	{pkg: "pipeline/past", allow: []string{"schematics", "images", "cluster", "cluster/claim", "cluster/kubeupgrade", "cluster/planning", "internal/journal", "internal/story", "internal/fault"}},
	{pkg: "pipeline/checkup", allow: []string{
		"pipeline", "schematics", "images", "cluster/...", "internal/config", "internal/story", "internal/fault", "internal/words",
	}},
	{pkg: "pipeline/support", allow: []string{
		"pipeline/...", "schematics", "cluster/...", "internal/bundle", "internal/redact", "internal/journal",
	}},
	{pkg: "pipeline/rebuild", allow: []string{"pipeline", "pipeline/configs", "cluster", "cluster/etcd", "cluster/config", "internal/config", "internal/step", "internal/fault"}},
	{pkg: "pipeline/configs", allow: []string{"pipeline", "schematics", "cluster", "cluster/config", "cluster/observe", "internal/fault"}},
	{pkg: "pipeline/setup", allow: []string{
		"pipeline", "schematics", "images", "cluster/...", "internal/config", "internal/fault", "internal/journal", "internal/trust",
	}},
	{pkg: "pipeline/adopt", allow: []string{"pipeline/setup", "schematics", "cluster", "internal/config", "internal/terraform", "internal/fault", "internal/words"}},
	{pkg: "pipeline/adopt", files: tests, allow: []string{"internal/terraform"}},
	{pkg: "internal/terraform", allow: []string{"internal/config", "internal/fault", terraform, yaml}},

	// the domain
	{pkg: "schematics/...", allow: []string{"internal/fault", "internal/knownissue", "internal/words", "internal/redact", "internal/savefile", schematic, yaml}},
	{pkg: "images", allow: []string{"schematics", "images/verify", "internal/savefile", "internal/step", "internal/fault", "internal/words"}},
	{pkg: "images/verify", allow: []string{"schematics", "internal/bootimage", "internal/diskimage", "internal/fault", "internal/words"}},
	{pkg: "cluster", allow: []string{"cluster/config", "cluster/replica", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/claim", allow: []string{"cluster", "cluster/parking", "internal/foreign", "internal/wait", "internal/fault", "internal/format"}},
	{pkg: "cluster/etcd", allow: []string{"cluster", "internal/etcddb", "internal/savefile", "internal/step", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/parking", allow: []string{"cluster", "internal/fault", "internal/format", "internal/words"}},
	{pkg: "cluster/shape", allow: []string{"cluster", "internal/fault"}},
	{pkg: "cluster/observe", allow: []string{"cluster", "cluster/replica", "cluster/shape", "cluster/parking", "cluster/config", "internal/fault", "internal/knownissue", "internal/words", errgroup}},
	{pkg: "cluster/strategy", allow: []string{"cluster", "cluster/parking", "cluster/observe", "internal/fault", "internal/words"}},
	{pkg: "cluster/planning", allow: []string{"cluster", "cluster/replica", "cluster/shape", "cluster/config", "cluster/etcd", "cluster/parking", "cluster/observe", "cluster/strategy", "internal/fault", "internal/knownissue", "internal/words"}},
	{pkg: "cluster/exchange", allow: []string{"cluster", "cluster/shape", "cluster/parking", "cluster/observe", "cluster/strategy", "internal/step", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/rolling", allow: []string{"cluster", "cluster/shape", "cluster/etcd", "cluster/parking", "cluster/observe", "cluster/strategy", "cluster/planning", "cluster/exchange", "internal/step", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/roll", allow: []string{"cluster", "cluster/replica", "cluster/shape", "cluster/config", "cluster/etcd", "cluster/parking", "cluster/observe", "cluster/planning", "cluster/exchange", "cluster/rolling", "internal/step", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/prune", allow: []string{"cluster", "cluster/parking", "cluster/exchange", "internal/step", "internal/fault", "internal/words"}},
	{pkg: "cluster/survey", allow: []string{"cluster", "cluster/etcd", "cluster/shape", "cluster/parking", "cluster/observe", "cluster/strategy", "cluster/planning", "cluster/claim", "cluster/roll", "internal/step", "internal/fault", "internal/words", errgroup}},
	{pkg: "cluster/clustertest", allow: []string{"cluster", "cluster/parking", "internal/fault", "testing"}}, // what tests of the rooms share
	{pkg: "cluster/exchange/exchangetest", allow: []string{"cluster", "cluster/exchange", "cluster/parking", "internal/step", "internal/fault"}},
	{pkg: "cluster/rolling/rollingtest", allow: []string{"cluster", "cluster/parking", "cluster/observe", "cluster/planning", "cluster/rolling", "cluster/clustertest"}},
	{pkg: "cluster/observe/observetest", allow: []string{"cluster", "cluster/observe", "cluster/clustertest"}},
	{pkg: "cluster/clustertest/vmsetting"},
	{pkg: "cluster/...", files: tests, allow: []string{"cluster/clustertest/...", "cluster/observe/observetest", "cluster/rolling/rollingtest"}},
	{pkg: "cluster/kubeupgrade", allow: []string{"cluster", "cluster/etcd", "cluster/observe", "internal/step", "internal/wait", "internal/fault", "internal/words"}},
	{pkg: "cluster/config", allow: []string{"internal/redact", yaml}}, // a leaf: compares texts, knows neither clusters, nor Talos, nor the factory
	{pkg: "cluster/replica", allow: []string{"internal/fault", "internal/foreign", "internal/format", "internal/words"}},
	{pkg: "cluster/observe", files: tests, allow: []string{"internal/words"}},
	{pkg: "pipeline/...", files: tests, allow: []string{"internal/config"}},
	{pkg: "cluster/config", files: tests, allow: []string{machinery}}, // compares its redaction with Talos'

	// the domain's foundations
	{pkg: "internal/fault"},
	{pkg: "internal/foreign"},
	{pkg: "internal/words"},
	{pkg: "internal/wait"},
	{pkg: "internal/trust", allow: []string{"internal/fault"}},
	{pkg: "internal/transport"}, // a leaf: knows HTTP, and no server
	{pkg: "internal/step", allow: []string{"internal/wait", "internal/fault", errgroup}},
	{pkg: "internal/holder", allow: []string{"cluster/claim"}},
	{pkg: "internal/savefile"},
	{pkg: "internal/format"},
	{pkg: "internal/adminconfig", allow: []string{"cluster", "internal/fault", clientGo, machinery, "github.com/siderolabs/crypto/x509"}},
	{pkg: "internal/machineconfig", allow: []string{"cluster", "internal/command", "internal/fault", "internal/redact", machinery, yaml}},
	{pkg: "internal/bootimage", allow: []string{zstd, xz, yaml}},
	{pkg: "internal/qcow2", allow: []string{zstd}},
	{pkg: "internal/diskimage", allow: []string{"internal/bootimage", "internal/qcow2"}},
	{pkg: "internal/etcddb", allow: []string{bbolt}},
	{pkg: "internal/etcddb", files: tests, allow: []string{bbolt}},
	{pkg: "internal/knownissue"}, // a table
	{pkg: "internal/redact", allow: []string{yaml}},
	{pkg: "internal/bundle", allow: []string{"internal/redact", yaml}},
	{pkg: "internal/journal", allow: []string{"internal/fault", "internal/format"}},
	{pkg: "internal/config", allow: []string{"internal/fault", "internal/words", yaml}},
	{pkg: "internal/config", files: tests, allow: []string{"github.com/invopop/jsonschema"}},

	{pkg: "internal/ui", allow: []string{
		"pipeline/...", "internal/story", "internal/step", "internal/fault", "internal/foreign", "internal/words", "cluster/...", "images", "schematics", "golang.org/x/term",
	}},
	// a run that is active, drawn: cmd/recast only gives it a terminal
	{pkg: "internal/watch", allow: []string{"pipeline", "pipeline/past", "internal/live", "internal/story", "internal/ui", "cluster/claim"}},
	{pkg: "internal/watch", files: tests, allow: []string{"cluster", "internal/config", "internal/journal"}},
	// the history in a run's log, and its HTML report
	{pkg: "internal/story", allow: []string{"cluster/...", "internal/journal", "internal/step", "internal/fault"}},
	{pkg: "internal/report", allow: []string{"pipeline/past", "cluster/...", "internal/story", "internal/style", "internal/foreign", "internal/words"}},
	{pkg: "internal/style"},
	{pkg: "internal/report", files: tests, allow: []string{"pipeline", "internal/config", "internal/redact"}},

	// pages in a browser on this machine
	{pkg: "internal/web", allow: []string{
		"pipeline", "pipeline/past", "cluster/planning", "cluster/observe", "internal/web/frame", "internal/live", "internal/story", "internal/ui", "internal/wait", "internal/fault", "docs/runbooks",
	}},
	{pkg: "internal/web", files: tests, allow: []string{"cluster/...", "internal/config", "internal/redact", "internal/web/frame/frametest"}},
	// what they share with the operator's pages, so it knows no cluster
	{pkg: "internal/web/frame", allow: []string{
		"internal/style", "internal/fault", "internal/foreign", "docs/runbooks",
		"github.com/russross/blackfriday/v2", // in recast anyway: cobra draws its own documentation with it
	}},
	{pkg: "internal/web/frame/frametest"},
	{pkg: "internal/ui", files: tests, allow: []string{"github.com/invopop/jsonschema", jsonschema}},

	// the only package that imports the drawing library
	{pkg: "internal/live", allow: []string{
		"internal/story", "internal/step", "internal/fault", "internal/foreign", "internal/words", "cluster/...", "images",
		"charm.land/bubbletea/v2", "github.com/charmbracelet/colorprofile", "github.com/charmbracelet/x/ansi", "golang.org/x/sys/unix",
	}},

	// the only package that imports OpenTelemetry and Prometheus; clients get transports and dial options
	{pkg: "internal/telemetry", allow: []string{
		"pipeline/...", "cluster/...", "internal/ui", "internal/story", "internal/step", "internal/fault", otel, grpc, prometheus, "github.com/prometheus/common/expfmt",
	}},
	{pkg: "internal/telemetry", files: tests, allow: []string{"github.com/prometheus/common/..."}},

	// adapters: each implements interfaces of domain packages with one client library
	{pkg: "internal/pve", allow: []string{"internal/pve/api", "cluster", "images", "internal/wait", "internal/fault", "internal/foreign", errgroup}},
	{pkg: "internal/pve/api", allow: []string{"cluster", "images", "internal/transport", "internal/wait", "internal/fault", "internal/foreign", proxmox}},
	{pkg: "internal/pve/api/apitest", allow: []string{"internal/sim/network", "testing"}},
	{pkg: "internal/pve/...", files: tests, allow: []string{"internal/pve/api/apitest"}},
	{pkg: "internal/talos", allow: []string{
		"cluster", "cluster/config", "cluster/observe", "internal/knownissue", "internal/fault", "internal/foreign", "internal/redact", machinery, cosi, pki, grpc, protobuf, yaml, upgradeK8s, semver,
	}},
	{pkg: "internal/kube", allow: []string{
		"cluster", "cluster/replica", "internal/expression", "internal/wait", "internal/fault", "internal/foreign", "internal/format", clientGo, k8sAPI, apimachine, drain, klog, errgroup, upgradeK8s,
	}},
	{pkg: "internal/expression", allow: []string{"internal/foreign", cel}},
	{pkg: "internal/expression", files: tests, allow: []string{apimachine}},
	{pkg: "internal/factory", allow: []string{"schematics", "images", "internal/transport", "internal/trust", "internal/fault", "internal/foreign", factory}},
	{pkg: "images", files: tests, allow: []string{"internal/bootimage", "internal/diskimage"}},
	{pkg: "internal/imager", allow: []string{"images", "internal/command", "internal/fault", yaml}},
	{pkg: "internal/notify", allow: []string{"cluster", "internal/trust", "internal/fault"}},
	{pkg: "internal/command", allow: []string{"cluster", "internal/fault", "internal/foreign"}},
	{pkg: "internal/registry", allow: []string{"schematics", "images", "internal/transport", "internal/trust", "internal/fault", "internal/foreign", ggcr, yaml}},

	// the lab knows neither recast nor any client of what it simulates
	{pkg: "internal/sim", allow: []string{
		"internal/sim/...", "!internal/sim/simtest", "!internal/sim/schedules", "!internal/sim/layouts", ggcr, machinery, "!" + talosDial, k8sAPI, apimachine, uuid,
	}},
	{pkg: "internal/sim/network"},
	{pkg: "internal/sim/must", allow: []string{"testing", "internal/fault", "github.com/google/go-cmp/cmp"}},
	{pkg: "internal/sim/record"},
	{pkg: "internal/sim/apidoc", allow: []string{"internal/sim/record"}},
	{pkg: "internal/sim/apidoc/apidoctest", allow: []string{"internal/sim/apidoc", "internal/sim/record"}},
	{pkg: "internal/sim/world/...", allow: []string{"internal/qcow2", "internal/sim/record"}},
	{pkg: "internal/sim/pveapi/...", allow: []string{
		"internal/sim/world", "internal/sim/record",
	}},
	{pkg: "internal/sim/artefact/...", allow: []string{"internal/bootimage", "internal/diskimage", ggcr, uuid, zstd, yaml, "github.com/diskfs/go-diskfs/backend", "github.com/diskfs/go-diskfs/partition/gpt"}},
	{pkg: "internal/sim/factoryapi/...", allow: []string{
		"internal/sim/artefact", "internal/sim/record",
		ggcr, schematic, machinery, "!" + talosDial, yaml, "golang.org/x/sync/singleflight",
	}},
	{pkg: "internal/sim/imager", allow: []string{"internal/sim/artefact", ggcr, yaml}},
	{pkg: "internal/sim/manifests", allow: []string{machinery, "!" + talosDial, yaml}},
	{pkg: "internal/sim/etcd", allow: []string{bbolt, protobuf}},
	{pkg: "internal/sim/talosapi", files: tests, allow: []string{"internal/qcow2"}},
	{pkg: "internal/sim/talosapi/...", allow: []string{
		"internal/sim/manifests", "internal/sim/etcd", "internal/sim/world", "internal/sim/artefact", "internal/sim/network", "internal/sim/record",
		machinery, "!" + talosDial, cosi, pki, grpc, protobuf, yaml, uuid,
	}},
	// not a client: the schemas by which the real server merges what is applied
	{pkg: "internal/sim/kubeapi/store", allow: []string{"k8s.io/client-go/dynamic", "k8s.io/client-go/rest"}}, // of a real API server
	{pkg: "internal/sim/kubeapi", allow: []string{"k8s.io/client-go/applyconfigurations", "gopkg.in/evanphx/json-patch.v4"}},
	{pkg: "internal/sim/kubeapi/...", allow: []string{
		"internal/sim/kubeapi/...", "internal/sim/manifests", "internal/sim/record", k8sAPI, apimachine, "sigs.k8s.io/yaml",
	}},
	{pkg: "internal/sim/simtest", allow: []string{"..."}},
	{pkg: "internal/sim/schedules", allow: []string{
		"cluster/...", "pipeline", "internal/config", "internal/fault", "internal/sim", "internal/sim/kubeapi/store", "internal/sim/record", "internal/sim/simtest", "internal/sim/talosapi", "internal/sim/world",
		k8sAPI, apimachine,
	}},
	{pkg: "internal/sim/layouts", allow: []string{
		"internal/sim", "internal/sim/artefact", "internal/sim/kubeapi/store", "internal/sim/world", apimachine, yaml,
	}},
	{pkg: "internal/e2e/disk", allow: []string{"schematics", "images/...", "internal/factory", "internal/registry"}},
	{pkg: "internal/e2e/fleet", allow: []string{"internal/operator/page", "internal/operator/page/pagetest", "internal/web/frame"}},
	{pkg: "internal/contract"},
	{pkg: "internal/contract", files: tests, allow: []string{"..."}},
	{pkg: "internal/arch"},
	{pkg: "internal/arch", files: tests, allow: []string{"golang.org/x/mod/..."}},
	{pkg: "internal/heap"},
	{pkg: "internal/pump"},

	// tests may use the lab, and the lab's tests the clients of what it simulates
	{pkg: "...", files: tests, allow: []string{
		"internal/sim/...", "internal/heap", "github.com/google/go-cmp/...", "github.com/rogpeppe/go-internal/testscript/...",
	}},
	{pkg: "internal/sim/...", files: tests, allow: []string{
		factory, talosDial, proxmox, clientGo, drain, k8sAPI, apimachine, ggcr, grpc, cosi, machinery, pki,
	}},
	{pkg: "internal/sim/simtest", files: tests, allow: []string{"...", "github.com/rogpeppe/go-internal/txtar"}},
	{pkg: "internal/kube", files: tests, allow: []string{k8sAPI, apimachine, pki}},
	{pkg: "internal/factory", files: tests, allow: []string{"images/verify", "internal/diskimage", "internal/registry", "internal/step", ggcr, schematic}},
	{pkg: "internal/imager", files: tests, allow: []string{"schematics", "images/verify", "internal/registry", "internal/step", ggcr}},
	{pkg: "internal/registry", files: tests, allow: []string{ggcr}},
}
