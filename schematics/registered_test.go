package schematics

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

func TestCheckRegistered(t *testing.T) {
	t.Parallel()
	e := resolve(t, request(map[string]string{"a": "customization: {extraKernelArgs: ['yes'], meta: [{key: 10, value: on}]}\n"}), catalog()).Schematics["a"]
	other := strings.Repeat("0", 64)
	ids := "the factory gives schematic a the ID " + other + ", but the lock has " + e.SchematicID
	for name, tc := range map[string]struct {
		id, text, want, hint string
	}{
		"the same":          {id: e.SchematicID, text: e.Schematic},
		"the same, no text": {id: e.SchematicID},
		"quoted another way": {
			other, strings.Replace(e.Schematic, `"yes"`, "'yes'", 1),
			ids + `: line 3 of its canonical text is "        - 'yes'", of ours "        - \"yes\""`,
			"both say the same, but the factory's YAML library quotes differently, as some of its versions do with strings such as yes, no, on, off: remove such a string from a.yaml, or use a factory of another version",
		},
		"more than we know": {
			other, e.Schematic + "new: 1\n", ids + `: line 8 of its canonical text is "new: 1", of ours ""`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 8 says",
		},
		"less than we know": {
			other, "customization: {}\n", ids + `: line 1 of its canonical text is "customization: {}", of ours "customization:"`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 1 says",
		},
		"a wrong sum": {
			other, e.Schematic, ids + ", for the same text",
			"an ID is the SHA-256 of the canonical text: the server is not an Image Factory, or changes what it receives",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := e.CheckRegistered("a", tc.id, tc.text)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || err.Error() != tc.want || fault.KindOf(err) != fault.Refused {
				t.Errorf("error\n got %v\nwant %s", err, tc.want)
			}
			if got := strings.Join(fault.Hints(err), "; "); got != tc.hint {
				t.Errorf("hint\n got %s\nwant %s", got, tc.hint)
			}
		})
	}
}
