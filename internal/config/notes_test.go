package config_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/recast-sh/recast/internal/config"
)

var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// What the notes show of recast.yaml can be pasted into one.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hooks", "notify", "gates"} {
		text, err := os.ReadFile("../../docs/notes/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		found := block.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s.md shows nothing", name)
		}
		for _, b := range found {
			if _, err := config.Parse(name+".md", []byte(small+string(b[1])), config.Options{}); err != nil {
				t.Error(err)
			}
		}
	}
}
