package operator

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// newEmptyHouse is a management cluster without nodes, in which a player carries out the Jobs. The operator is
// installed, and runs as a process of this machine with the rights of its installation.
func newEmptyHouse(t *testing.T, page string) house {
	t.Helper()
	text := must(os.ReadFile("../../../../docs/howto/" + page))(t)
	h := house{t: t, plane: plane.Start(t, "--controllers=*,-job-controller"), namespace: "default", page: string(text), commands: new(int)}
	out, err := exec.Command(h.binary("recast"), "operator", "manifests", "--image", image).Output()
	if err != nil {
		t.Fatalf("recast operator manifests: %v", err)
	}
	h.apply(string(out))
	h.kubectl("-n recast-system scale deployment/recast-operator --replicas=0")
	return h
}

// single is the operator as a process of this machine.
type single struct {
	*process.Process
	h              house
	metrics, pages string // URLs
}

// startSingle starts the operator, and waits until it leads.
func (h house) startSingle() single {
	h.t.Helper()
	s := h.startReplica()
	h.until("the operator leads", func() bool { return s.read().sum("leader_election_master_status") == 1 })
	return s
}

// startReplica starts the operator with the account that its installation has made.
func (h house) startReplica() single {
	h.t.Helper()
	address, pages := process.FreeAddress(h.t), process.FreeAddress(h.t)
	cmd := exec.Command(h.binary("recast-operator"),
		"--leader-elect", "--leader-election-lease=1m", "--job-image="+image, // a busy machine stalls processes for seconds
		"--metrics-bind-address="+address, "--health-probe-bind-address=0", "--pages-bind-address="+pages)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+h.account("recast-system", "recast-operator"), "POD_NAMESPACE=recast-system")
	return single{process.Start(h.t, "recast-operator", cmd), h, "http://" + address + "/metrics", "http://" + pages}
}

// account writes the kubeconfig of a ServiceAccount.
func (h house) account(namespace, name string) string {
	h.t.Helper()
	const hours = 12
	token, err := h.plane.Client.CoreV1().ServiceAccounts(namespace).CreateToken(h.t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(hours * 60 * 60))}}, metav1.CreateOptions{})
	mustDo(h.t, err)
	file := filepath.Join(h.t.TempDir(), name)
	writeFile(h.t, file, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: e2e, user: {token: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, h.plane.Admin.Host, base64.StdEncoding.EncodeToString(h.plane.CA.PEM), token.Status.Token))
	return file
}

// reading is what the operator says of itself: values by name and labels.
type reading map[string]float64

// read scrapes the metrics of the operator; empty if it does not answer.
func (s single) read() reading {
	s.h.t.Helper()
	r := reading{}
	request := must(http.NewRequestWithContext(s.h.t.Context(), http.MethodGet, s.metrics, http.NoBody))(s.h.t)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return r
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(answer.Body); err != nil {
		return r
	}
	for line := range strings.Lines(text.String()) {
		at := strings.LastIndex(line, " ")
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil && line[0] != '#' {
			r[line[:at]] = value
		}
	}
	return r
}

// sum adds up a metric over all labels, or over those sets of labels in which all of these are: code="403".
func (r reading) sum(name string, labels ...string) (total float64) {
next:
	for key, value := range r {
		if base, _, _ := strings.Cut(key, "{"); base != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key, l) {
				continue next
			}
		}
		total += value
	}
	return total
}

// peakMiB is the most memory that the operator has ever had.
func (s single) peakMiB() int {
	s.h.t.Helper()
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID())))(s.h.t)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib := must(strconv.Atoi(strings.Fields(rest)[0]))(s.h.t)
	return kib >> 10
}

// settle waits until nothing is left to do for the operator, and returns what it says then.
func (s single) settle() reading {
	s.h.t.Helper()
	const quiet = 3 * time.Second
	last, since := -1.0, time.Now()
	s.h.until("the operator has nothing to do", func() bool {
		if now := s.read().sum("controller_runtime_reconcile_total"); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > quiet
	})
	return s.read()
}

// get reads an object or a list of the namespace from the API server.
func (h house) get(path string, into any) {
	h.t.Helper()
	b, err := h.plane.Client.RESTClient().Get().AbsPath("/apis/recast.dev/v1alpha1/namespaces/" + h.namespace + "/" + path).DoRaw(h.t.Context())
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		h.t.Fatalf("read %s: %v", path, err)
	}
}
