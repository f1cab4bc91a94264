package operator

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// fleet is a management cluster with many TalosClusters, whose Jobs are played.
type fleet struct {
	house
	player   *player
	operator single
	clusters int
}

var thousand = flag.Bool("thousand", false, "let the fleet grow to 1,000 clusters, which takes ten minutes")

// TestFleet rolls a hundred clusters in ten sites, and then a thousand if that is asked for, and measures the
// operator.
func TestFleet(t *testing.T) {
	h := newEmptyHouse(t, "fleet.md")
	h.namespace = "fleet"
	h.kubectl("create namespace fleet")
	f := &fleet{house: h, player: startPlayer(t, h.plane.Client), operator: h.startSingle()}
	f.grow(100)
	type story struct {
		name string
		tell func(*fleet)
	}
	stories := []story{{"idle", (*fleet).idle}, {"waves", (*fleet).waves}, {"threshold", (*fleet).threshold}, {"pages", (*fleet).pages}, {"memory", (*fleet).hundred}}
	if *thousand {
		stories = append(stories, story{"growth", (*fleet).growth}, story{"all pages", (*fleet).pages})
	}
	stories = append(stories, story{"restart", (*fleet).restart})
	for _, story := range stories {
		passed := t.Run(story.name, func(t *testing.T) {
			inside := *f
			inside.t = t
			story.tell(&inside)
			f.operator, f.clusters = inside.operator, inside.clusters
		})
		if !passed {
			t.Logf("%s\n%s", f.kubectl("get fleetrolls -o wide"), f.kubectl("get events --sort-by=.lastTimestamp --field-selector=involvedObject.kind=FleetRoll"))
			return
		}
	}
	t.Attr("commands", fmt.Sprint(*h.commands))
}

const sites = 10

// grow creates TalosClusters until there are so many, and waits until all are in sync. The first one of each site
// is a canary.
func (f *fleet) grow(to int) {
	f.t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := f.clusters; i < to; i++ {
		name, site, ring := clusterName(i), fmt.Sprintf("site-%d", i%sites), "later"
		switch {
		case i < sites:
			ring = "canary"
		case i < 3*sites:
			ring = "early"
		}
		f.player.set(func() { f.player.sites[name] = site })
		files := configMap(f.t, name, map[string]string{"recast.yaml": text(2), "schematics__default.yaml": text(1)})
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f.create("/api/v1", "configmaps", files)
			f.create("/apis/recast.dev/v1alpha1", "talosclusters", fmt.Sprintf(`
apiVersion: recast.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s, labels: {topology.kubernetes.io/region: %s, ring: %s, size: "%d"}}
spec:
  source: {configMap: {name: %[1]s}}
  secrets: {proxmoxToken: {name: %[1]s}, talosconfig: {name: %[1]s}, kubeconfig: {name: %[1]s}}
  lock: Update
  drift: {schedule: %[5]q}
  rolls: {create: Never}
`, name, site, ring, to, f.schedule()))
		})
	}
	wait.Wait()
	from := f.clusters
	f.clusters = to
	f.inSync(from)
}

func clusterName(i int) string { return fmt.Sprintf("c%04d", i) }

// schedule is an hourly one whose time does not come within half an hour.
func (f *fleet) schedule() string {
	return fmt.Sprintf("%d * * * *", time.Now().Add(-20*time.Minute).Minute())
}

func (f *fleet) create(group, resource, manifest string) {
	err := f.plane.Client.RESTClient().Post().AbsPath(group+"/namespaces/"+f.namespace+"/"+resource).
		SetHeader("Content-Type", "application/yaml").Body([]byte(manifest)).Do(f.t.Context()).Error()
	if err != nil {
		f.t.Errorf("create %s: %v\n%s", resource, err, manifest)
	}
}

// inSync waits until all clusters from that number on are, by a check of what they are to be.
func (f *fleet) inSync(from int) {
	f.t.Helper()
	f.until("all clusters are in sync", func() bool {
		time.Sleep(time.Second)
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					Conditions []struct{ Type, Status, Reason string }
				}
			}
		}
		f.get("talosclusters", &list)
		n := 0
		for _, c := range list.Items {
			for _, k := range c.Status.Conditions {
				if c.Metadata.Name >= clusterName(from) && k.Type == "Ready" && k.Status == "True" && k.Reason == "InSync" {
					n++
				}
			}
		}
		return n == f.clusters-from
	})
}

// status is that of a FleetRoll.
type status struct {
	Done, Failed, Running int
	Stage                 string
	Members               []struct{ Cluster, Stage, Phase string }
}

func (f *fleet) status(name string) status {
	f.t.Helper()
	var o struct{ Status status }
	f.get("fleetrolls/"+name, &o)
	return o.Status
}

// awaits waits until the condition Ready of a FleetRoll has that reason.
func (f *fleet) awaits(name, reason string) {
	f.t.Helper()
	f.kubectl(fmt.Sprintf(`wait --for=jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'=%s fleetroll/%s --timeout=10m`, reason, name))
}

// example is the FleetRoll of the documentation, with a shorter soak time.
func (f *fleet) example() string {
	f.t.Helper()
	const begin = "apiVersion: recast.dev/v1alpha1\nkind: FleetRoll\n"
	_, text, found := strings.Cut(f.page, begin)
	text, _, closed := strings.Cut(text, "```")
	short := strings.Replace(text, "soak: 24h", "soak: "+soak.String(), 1)
	if !found || !closed || short == text {
		f.t.Fatal("docs/howto/fleet.md has no FleetRoll with a soak time of 24h")
	}
	return begin + short
}

const soak = 3 * time.Second
