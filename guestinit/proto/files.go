package proto

import "time"

// StatRequest asks for one path: POST /v1/files/stat.
type StatRequest struct {
	Path       string `json:"path"`
	FollowLink bool   `json:"follow_link,omitempty"`
}

// FileStat describes one path in the guest.
type FileStat struct {
	Name string `json:"name"` // last element of the path asked for
	// RawName replaces Name where that is not UTF-8, RawTarget LinkTarget. Only
	// lists have them.
	RawName   []byte `json:"raw_name,omitempty"`
	RawTarget []byte `json:"raw_target,omitempty"`
	Size      int64  `json:"size_bytes"`
	// Mode is st_mode: type, setuid, setgid, sticky and permission bits.
	Mode  uint32    `json:"mode"`
	UID   int       `json:"uid"`
	GID   int       `json:"gid"`
	MTime time.Time `json:"mtime"`
	// LinkTarget is set for a symbolic link.
	LinkTarget string `json:"link_target,omitempty"`
}

// IsDir reports whether the path is a directory.
func (s FileStat) IsDir() bool { return s.Mode&0o170000 == 0o040000 }

// PutRequest extracts a tar stream: POST /v1/files/put, "Upgrade: sietch-tar".
type PutRequest struct {
	Path string `json:"path"`
	// Rename is `cp SRC DST` of one source: all entries are below one top
	// entry, which becomes Path itself, or goes into Path where that is an
	// existing directory. Without it Path is an existing directory and the
	// entries go into it.
	Rename bool `json:"rename,omitempty"`
	// Contents, with Rename, is `cp SRC/. DST`: the children of the top entry
	// go into Path, which becomes a directory where it does not exist.
	Contents bool `json:"contents,omitempty"`
	// Parents makes missing directories above Path (and Path itself without
	// Rename), owned by root with mode 0755.
	Parents bool `json:"parents,omitempty"`
}

// GetRequest reads a file or a tree as tar: POST /v1/files/get, "Upgrade:
// sietch-tar". The top entry is named as the last element of Path.
type GetRequest struct {
	Path string `json:"path"`
	// FollowLink follows a link at the end of Path, as a trailing slash does.
	FollowLink bool `json:"follow_link,omitempty"`
	// Zeroes says that the host understands FrameZeroes.
	Zeroes bool `json:"zeroes,omitempty"`
}

// ListRequest asks for what is in a directory: POST /v1/files/list, answered by
// a [FileStat] record for each, in no order. A link at the end of Path is
// followed.
type ListRequest struct {
	Path string `json:"path"`
}

// MakeDirRequest makes a directory: POST /v1/files/mkdir.
type MakeDirRequest struct {
	Path string `json:"path"`
	// Mode is given to the directory as it is, whatever the umask; those above
	// it get 0755.
	Mode uint32 `json:"mode"`
	// Parents makes missing directories above, and takes one that is there.
	Parents bool `json:"parents,omitempty"`
}

// RemoveRequest removes a path: POST /v1/files/remove.
type RemoveRequest struct {
	Path string `json:"path"`
	// Recursive removes all that is beneath it too, without following links.
	Recursive bool `json:"recursive,omitempty"`
}

// WatchRequest watches a file or directory: POST /v1/files/watch, answered by
// records. The first is an empty [FileEvent] and says that changes are being
// watched.
type WatchRequest struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

// FileEvent is one change.
type FileEvent struct {
	// Path begins with that of the request.
	Path string `json:"path"`
	// RawPath replaces Path where that is not UTF-8.
	RawPath []byte `json:"raw_path,omitempty"`
	Op      string `json:"op"` // one of the Op constants
	IsDir   bool   `json:"is_dir,omitempty"`
}

// Operations of a [FileEvent].
const (
	OpCreate     = "create" // or moved here
	OpWrite      = "write"
	OpRemove     = "remove"
	OpRename     = "rename" // moved away: Path is the old name
	OpAttributes = "attributes"
	OpOverflow   = "overflow" // some changes were not told
)
