-- remove: delete ids wherever they stand, with all that is known of them.
-- KEYS: leases claims bodies parked dead reasons notes bell timelines...
-- ARGV: spare ('1': what is leased stays), then ids
-- RETURNS: per id the place it was found in, or unknown
-- RULES: 1, 2, 4 (a holder's token is void from then on), 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, bell =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local timelines = {unpack(KEYS, 9)}
local spare = ARGV[1] == '1'
-- @include clock place

local answer = {}
for at = 2, #ARGV do
  local id = ARGV[at]
  local place, level = find_place(id)
  answer[#answer + 1] = place or 'unknown'
  if not (spare and place == 'leased') then
    if place then
      lift(id, place, level)
    end
    call('HDEL', claims, id)
    call('HDEL', bodies, id)
    call('HDEL', notes, id)
  end
end
if call('EXISTS', bodies) == 0 then
  call('DEL', bell)
end
return answer
