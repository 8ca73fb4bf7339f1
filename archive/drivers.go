package archive

// The object stores whose URLs a destination may be: s3:// and gs://. Credentials come from where the providers' own
// tools look for them. They are most of the program's size, so nothing else is linked.
import (
	_ "gocloud.dev/blob/gcsblob" // opens gs://
	_ "gocloud.dev/blob/s3blob"  // opens s3://
)
