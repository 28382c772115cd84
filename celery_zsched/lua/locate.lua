-- locate: where ids stand and what is known of them; changes nothing.
-- KEYS: leases claims bodies parked dead reasons notes timelines...
-- ARGV: ids
-- RETURNS: now, then seven per id: place (or ''), level, score (due, lease end, or moment of death), record, reason, note,
--          body ('' each where there is none)
-- RULES: 2
local leases, claims, bodies, parked, dead, reasons, notes =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local timelines = {unpack(KEYS, 8)}
-- @include clock place

local answer = {stamp(now)}
for at = 1, #ARGV do
  local id = ARGV[at]
  local place, level, score = find_place(id)
  local from = #answer
  answer[from + 1], answer[from + 2], answer[from + 3] = place or '', level or 0, score or ''
  answer[from + 4] = call('HGET', claims, id) or ''
  answer[from + 5] = call('HGET', reasons, id) or ''
  answer[from + 6] = call('HGET', notes, id) or ''
  answer[from + 7] = call('HGET', bodies, id) or ''
end
return answer
